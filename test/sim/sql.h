/*
 * sql.h
 *	  The relay's SQL statements and their results.
 */
#ifndef SIM_SQL_H
#define SIM_SQL_H

#include "pg.h"

typedef struct SqlStatement
{
	const char *start;
	uint64		checksum;		/* of the whole text */
	void		(*run)(const Datum *values);
	bool		writes;
} SqlStatement;

extern const SqlStatement sim_sql_statements[];
extern const int sim_sql_statement_count;

/* A row of a result. */
typedef struct ResultRow
{
	Datum		values[6];
	bool		nulls[6];
} ResultRow;

extern ResultRow *sim_sql_add_result(void);

/* The elements of an array. */
extern Datum *sim_sql_elements(Datum array, int *count);

/* Rows of outbox.delivery. */
extern const Version *sim_sql_lock_delivery(Delivery *delivery);
extern void sim_sql_write_delivery(Delivery *delivery, char state, int attempts, int64 next_at);

/* pg_sql_requests.c */
extern void sim_sql_select_requests(const Datum *values);
extern void sim_sql_delete_requests(const Datum *values);
extern void sim_sql_unpark(const Datum *values);
extern void sim_sql_lock_parked(const Datum *values);
extern void sim_sql_count_parked(const Datum *values);
extern void sim_sql_lock_position(const Datum *values);
extern void sim_sql_count_position(const Datum *values);
extern void sim_sql_select_one_parked(const Datum *values);
extern void sim_sql_discard(const Datum *values);

#endif							/* SIM_SQL_H */
