/*
 * database.h
 *	  The extension's objects in the current database, and its place in shared
 *	  memory.
 */
#ifndef OUTBOX_DATABASE_H
#define OUTBOX_DATABASE_H

#include "outbox.h"

typedef struct OutboxCatalog
{
	Oid			sequence;
	Oid			id_key;			/* the table with the keys of event_ids */
	uint64		generation;		/* another one whenever anything of this, or a key, may have changed */
	Oid			log[OUTBOX_CHILDREN];
	Oid			log_position[OUTBOX_CHILDREN];	/* unique index on (position) */
	Oid			log_event[OUTBOX_CHILDREN]; /* unique index on (event_id), of rows whose id was given */
	Oid			log_aggregate[OUTBOX_CHILDREN]; /* index on (agg_hash, position) */
	Oid			ledger[OUTBOX_CHILDREN];
	Oid			ledger_bucket[OUTBOX_CHILDREN]; /* index on (bucket) */
	Oid			ring;
	Oid			identity;		/* InvalidOid: SQL objects of another version */
	Oid			delivery;
	Oid			delivery_position; /* unique index on (position) */
	Oid			delivery_aggregate; /* index on (agg_hash, position), without rows in state d */
} OutboxCatalog;

extern const OutboxCatalog *outbox_database_catalog(bool missing_ok);
extern const OutboxCatalog *outbox_database_lock(void);
extern const OutboxCatalog *outbox_database_lock_to_write(void);
extern OutboxDatabase *outbox_database_attach(const OutboxCatalog *catalog);
extern int64 outbox_database_watermark(void);
extern void outbox_database_pin_session(void);

#endif							/* OUTBOX_DATABASE_H */
