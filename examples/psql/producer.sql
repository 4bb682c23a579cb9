-- psql -v id=1 -v total=9.5 -f producer.sql: places an order. The order and its event exist both, or neither.
\set ON_ERROR_STOP on
BEGIN;
INSERT INTO orders (id, total) VALUES (:id, :total);
SELECT outbox.enqueue('order', :'id', 'order.placed', jsonb_build_object('id', :id, 'total', :total),
    headers => '{"ce-producer": "psql"}') AS event_id \gset
COMMIT;
-- waits until all that is committed is published
SELECT outbox.flush('1 minute') AS flushed;
SELECT event_id, subject, payload, publish_state, published_at FROM outbox.events WHERE event_id = :'event_id';
