#!/usr/bin/env python3
"""producer.py ID TOTAL: places an order. The order and its event exist both, or neither."""
import sys

import psycopg2
from psycopg2.extras import Json


def place(connection, order_id, total):
    with connection:  # commits, or rolls back if anything is raised
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (id, total) VALUES (%s, %s)", (order_id, total))
            cursor.execute(
                "SELECT outbox.enqueue('order', %s, 'order.placed', %s, headers => %s)",
                (order_id, Json({"id": int(order_id), "total": float(total)}), Json({"ce-producer": "python"})),
            )
            return cursor.fetchone()[0]


def main():
    order_id, total = sys.argv[1:]
    connection = psycopg2.connect("")  # PGHOST, PGDATABASE, ...
    try:
        print("placed order", order_id, "with event", place(connection, order_id, total))
    except psycopg2.Error as error:
        sys.exit(f"no order, no event: {error}")
    finally:
        connection.close()


main()
