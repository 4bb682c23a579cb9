/*
 * store.h
 *	  The database of the simulation: transactions, WAL, the extension's tables,
 *	  with what a crash loses.
 */
#ifndef SIM_STORE_H
#define SIM_STORE_H

#include "sim.h"

/* ---------- transactions ---------- */

typedef enum XactState
{
	XACT_RUNNING,
	XACT_PREPARED,
	XACT_COMMITTED,
	XACT_ABORTED
} XactState;

typedef struct Xact
{
	uint32_t	xid;
	XactState	state;
	bool		locked;			/* its lock is held: until its callbacks have run */
	int64_t		lsn;			/* end of its commit or prepare record; 0: none yet */
	XactState	recorded;		/* what that record says: the state after a crash */
	int64_t		csn;			/* when it became visible, among others */
	SimProc    *owner;			/* NULL: prepared, or over */
	int			rows;			/* that it added to the log */
	bool		owner_only;		/* it records what only the owner of the slots may record */
	uint64_t	slots;			/* of which slots */
} Xact;

/* What a statement sees: what was visible at some moment, and its own transaction. */
typedef struct View
{
	int64_t		csn;
	const Xact *own;
} View;

extern Xact *sim_xact_start(SimProc *owner);
extern Xact *sim_xact_find(uint32_t xid);
extern void sim_xact_abort(Xact *xact);
extern void sim_xact_show(Xact *xact);	/* committed, and visible from now on */
extern int	sim_xact_list_prepared(Xact **list, int max);
extern View sim_view(const Xact *own);
extern bool sim_sees(const View *view, const Xact *xact);

/* ---------- the WAL ---------- */

extern int64_t sim_wal_insert(void);	/* returns the end of a new record */
extern void sim_wal_flush(int64_t lsn);	/* takes no time */
extern int64_t sim_wal_inserted(void);
extern int64_t sim_wal_flushed(void);
extern int64_t sim_sequence_next(void);
extern int64_t sim_sequence_last(void);

/* ---------- the log ---------- */

/* What is wrong with an event. */
typedef enum Flaw
{
	FLAW_NONE,
	FLAW_PERMANENT,				/* JetStream refuses it for ever */
	FLAW_TRANSIENT,				/* for some times */
	FLAW_CLIENT,				/* the client refuses it */
	FLAW_ROW					/* its row can't be read */
} Flaw;

typedef struct Row
{
	int64_t		position;
	uint64_t	hash;
	int64_t		follows;
	int64_t		created;
	int64_t		not_before;		/* by the wall clock; 0: none */
	int			priority;
	int			type;			/* of the aggregate, for pauses */
	int			size;
	Flaw		flaw;
	int			refusals_left;	/* FLAW_TRANSIENT */
	Xact	   *xact;

	/* The truth about it, for the checks; see check.c. */
	int64_t		acked_by;		/* incarnation of the relay that had its ack last; 0: none */
	Xact	   *settled;		/* has recorded it in the ledger */
	int			refusals;		/* that count, given to a relay, not recorded by it yet */
	int64_t		refused_by;		/* that relay's incarnation */
	bool		refused_for_good;	/* one of them */
	int			stored;			/* copies in the stream */
	int64_t		stored_at;		/* the last one */
} Row;

extern Row *sim_log_add(const Row *row);
extern Row *sim_log_find(int64_t position);	/* NULL: none, or aborted */
extern int	sim_log_count(void);
extern Row *sim_log_at(int i);	/* by position */
extern int	sim_log_search(int64_t position);	/* index of the first row at or behind it */
extern int	sim_log_search_aggregate(uint64_t hash, int64_t position, Row ***rows, int *count);

/* ---------- the other tables ---------- */

typedef struct Version
{
	char		state;
	int			attempts;
	int64_t		next_at;		/* a timestamp; SIM_NEVER: NULL */
	Xact	   *xact;
	struct Version *older;
} Version;

typedef struct Delivery
{
	int64_t		position;
	uint64_t	hash;
	Version    *newest;
} Delivery;

extern int	sim_delivery_count(void);
extern Delivery *sim_delivery_at(int i);	/* by position */
extern Delivery *sim_delivery_find(int64_t position, bool add, uint64_t hash);
extern const Version *sim_delivery_see(const Delivery *delivery, const View *view);	/* NULL: no such row */
extern const Version *sim_delivery_newest(Delivery *delivery);	/* not aborted; NULL: none */
extern void sim_delivery_write(Delivery *delivery, Version version);

/* Rows of outbox.ledger, watermark, request, pauses; each uses what it needs. */
typedef struct Thing
{
	Xact	   *xmin;
	Xact	   *xmax;			/* NULL: not deleted */
	int64_t		id;
	int64_t		position;		/* or bucket */
	uint64_t	hash;
	char		kind;
	int			lo;
	int			hi;
	const uint8_t *bits;		/* NULL: all of lo..hi */
	int			type;			/* pauses: -1 and no subject: everything */
	bool		by_subject;
} Thing;

typedef struct Table
{
	Thing	   *rows;
	int			count;
} Table;

extern Table sim_ledger;
extern Table sim_watermark;
extern Table sim_request;
extern Table sim_pauses;

extern Thing *sim_table_add(Table *table, Thing thing);
extern bool sim_thing_seen(const Thing *thing, const View *view);
extern bool sim_ledger_has(int64_t position, const View *view);
extern int64_t sim_watermark_max(const View *view);

/* ---------- life ---------- */

extern void sim_store_reset(void);
extern void sim_rows_reset(void);
extern void sim_store_crash(void);	/* and recovery */

/* Copies that live until the end of the run. */
extern void *sim_keep(const void *data, size_t size);

#endif							/* SIM_STORE_H */
