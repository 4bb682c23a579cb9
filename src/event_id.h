/*
 * event_id.h
 *	  Ids of events that the caller gave none.
 */
#ifndef OUTBOX_EVENT_ID_H
#define OUTBOX_EVENT_ID_H

#include "utils/uuid.h"

#include "database.h"

extern void outbox_event_id_make(const OutboxCatalog *catalog, TimestampTz created_at, int64 position, pg_uuid_t *id);
extern int outbox_event_id_key_count(const OutboxCatalog *catalog);
extern int64 outbox_event_id_position(const OutboxCatalog *catalog, const pg_uuid_t *id, int key);

#endif /* OUTBOX_EVENT_ID_H */
