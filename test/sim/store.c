/*
 * store.c
 *	  The database of the simulation.
 *
 * Transactions become visible in an order of their own (csn), which is what
 * snapshots are made of, and are durable once the WAL is flushed behind their
 * commit record. A crash keeps what is durable. Rows know the transactions that
 * made and deleted them; nobody vacuums.
 */
#include "store.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_XID 1000

/* PostgreSQL logs a sequence ahead by so many numbers. */
#define SEQUENCE_AHEAD 32

/* ---------- memory of a run ---------- */

typedef struct Kept
{
	struct Kept *next;
} Kept;

static Kept *kept;

void *
sim_keep(const void *data, size_t size)
{
	Kept	   *memory = malloc(sizeof(Kept) + size);

	memory->next = kept;
	kept = memory;
	memcpy(memory + 1, data, size);
	return memory + 1;
}

/* ---------- the WAL and the sequence ---------- */

static int64_t wal_inserted;
static int64_t wal_flushed;

static int64_t sequence_last;

/* Up to where the WAL knows it, by record. */
typedef struct SequenceRecord
{
	int64_t		lsn;
	int64_t		value;
} SequenceRecord;

static SequenceRecord *sequence_records;
static int	sequence_count;
static int	sequence_space;

int64_t
sim_wal_insert(void)
{
	wal_inserted += 8 + sim_below(100);
	return wal_inserted;
}

void
sim_wal_flush(int64_t lsn)
{
	if (lsn > wal_inserted)
		sim_fail("WAL is flushed to %lld, but there is only %lld", (long long) lsn, (long long) wal_inserted);
	if (lsn > wal_flushed)
		wal_flushed = lsn;
}

int64_t
sim_wal_inserted(void)
{
	return wal_inserted;
}

int64_t
sim_wal_flushed(void)
{
	return wal_flushed;
}

int64_t
sim_sequence_next(void)
{
	sequence_last++;
	if (sequence_count > 0 && sequence_last <= sequence_records[sequence_count - 1].value)
		return sequence_last;
	if (sequence_count == sequence_space)
	{
		sequence_space = sequence_space * 2 + 64;
		sequence_records = realloc(sequence_records, sizeof(SequenceRecord) * sequence_space);
	}
	sequence_records[sequence_count++] = (SequenceRecord) {sim_wal_insert(), sequence_last + SEQUENCE_AHEAD};
	return sequence_last;
}

int64_t
sim_sequence_last(void)
{
	return sequence_last;
}

/* ---------- transactions ---------- */

static Xact **xacts;
static int	xact_count;
static int	xact_space;
static int64_t last_csn;

Xact *
sim_xact_start(SimProc *owner)
{
	Xact		xact = {.xid = FIRST_XID + xact_count, .state = XACT_RUNNING, .locked = true, .owner = owner};

	if (xact_count == xact_space)
	{
		xact_space = xact_space * 2 + 256;
		xacts = realloc(xacts, sizeof(Xact *) * xact_space);
	}
	return xacts[xact_count++] = sim_keep(&xact, sizeof(xact));
}

Xact *
sim_xact_find(uint32_t xid)
{
	if (xid < FIRST_XID || xid >= (uint32_t) FIRST_XID + xact_count)
		sim_fail("there is no transaction %u", xid);
	return xacts[xid - FIRST_XID];
}

void
sim_xact_show(Xact *xact)
{
	xact->state = XACT_COMMITTED;
	xact->csn = ++last_csn;
	sim_check_commit(xact);
}

int
sim_xact_list_prepared(Xact **list, int max)
{
	int			count = 0;

	for (int i = 0; i < xact_count && count < max; i++)
	{
		if (xacts[i]->state == XACT_PREPARED)
			list[count++] = xacts[i];
	}
	return count;
}

View
sim_view(const Xact *own)
{
	return (View) {last_csn, own};
}

bool
sim_sees(const View *view, const Xact *xact)
{
	return (view->own != NULL && xact == view->own) || (xact->state == XACT_COMMITTED && xact->csn <= view->csn);
}

/* ---------- the log ---------- */

typedef struct RowList
{
	uint64_t	hash;
	Row		  **rows;			/* by position */
	int			count;
	int			space;
} RowList;

#define MAX_AGGREGATES 64
static RowList all_rows;
static RowList of_aggregate[MAX_AGGREGATES];
static int	aggregate_count;

static int
search(const RowList *list, int64_t position)
{
	int			low = 0;
	int			high = list->count;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (list->rows[middle]->position < position)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void
insert(RowList *list, Row *row)
{
	int			i = search(list, row->position);

	if (i < list->count && list->rows[i]->position == row->position)
		sim_fail("position %lld is given twice", (long long) row->position);
	if (list->count == list->space)
	{
		list->space = list->space * 2 + 64;
		list->rows = realloc(list->rows, sizeof(Row *) * list->space);
	}
	memmove(&list->rows[i + 1], &list->rows[i], sizeof(Row *) * (list->count - i));
	list->rows[i] = row;
	list->count++;
}

static void
take_out(RowList *list, const Row *row)
{
	int			i = search(list, row->position);

	if (i < list->count && list->rows[i] == row)
		memmove(&list->rows[i], &list->rows[i + 1], sizeof(Row *) * (--list->count - i));
}

static RowList *
list_of(uint64_t hash)
{
	for (int i = 0; i < aggregate_count; i++)
	{
		if (of_aggregate[i].hash == hash)
			return &of_aggregate[i];
	}
	if (aggregate_count == MAX_AGGREGATES)
		sim_fail("more aggregates than the simulation has room for");
	of_aggregate[aggregate_count].hash = hash;
	of_aggregate[aggregate_count].count = 0;
	return &of_aggregate[aggregate_count++];
}

Row *
sim_log_add(const Row *row)
{
	Row		   *added = sim_keep(row, sizeof(*row));

	row->xact->rows++;
	insert(&all_rows, added);
	insert(list_of(row->hash), added);
	return added;
}

Row *
sim_log_find(int64_t position)
{
	int			i = search(&all_rows, position);

	return i < all_rows.count && all_rows.rows[i]->position == position ? all_rows.rows[i] : NULL;
}

int
sim_log_count(void)
{
	return all_rows.count;
}

Row *
sim_log_at(int i)
{
	return all_rows.rows[i];
}

int
sim_log_search(int64_t position)
{
	return search(&all_rows, position);
}

int
sim_log_search_aggregate(uint64_t hash, int64_t position, Row ***rows, int *count)
{
	RowList    *list = list_of(hash);

	*rows = list->rows;
	*count = list->count;
	return search(list, position);
}

/* Its rows never were. */
void
sim_xact_abort(Xact *xact)
{
	xact->state = XACT_ABORTED;
	xact->locked = false;
	xact->owner = NULL;
	for (int i = xact->rows > 0 ? all_rows.count : 0; i-- > 0;)
	{
		Row		   *row = all_rows.rows[i];

		if (row->xact != xact)
			continue;
		take_out(&all_rows, row);
		take_out(list_of(row->hash), row);
	}
}

/* ---------- life ---------- */

void
sim_store_reset(void)
{
	while (kept != NULL)
	{
		Kept	   *next = kept->next;

		free(kept);
		kept = next;
	}
	wal_inserted = wal_flushed = 0;
	sequence_last = sequence_count = 0;
	xact_count = 0;
	last_csn = 0;
	all_rows.count = 0;
	aggregate_count = 0;
	sim_rows_reset();
}

/* What wasn't durable never was; the sequence may give the same numbers again. */
void
sim_store_crash(void)
{
	int			lost = 0;

	for (int i = 0; i < xact_count; i++)
	{
		Xact	   *xact = xacts[i];

		bool		durable = xact->lsn != 0 && xact->lsn <= wal_flushed;

		if (xact->state == XACT_ABORTED)
			continue;
		/* Its end may have been on disk before anybody could see it; one that was prepared stays so until then. */
		if (durable && xact->recorded == XACT_COMMITTED && xact->state != XACT_COMMITTED)
			sim_xact_show(xact);
		else if (durable)
			xact->state = xact->recorded;
		else if (xact->state != XACT_PREPARED)
		{
			lost += xact->state == XACT_COMMITTED;
			sim_xact_abort(xact);
		}
		if (xact->state == XACT_ABORTED)
			sim_xact_abort(xact);
		xact->locked = xact->state == XACT_PREPARED;
		xact->owner = NULL;
	}
	while (sequence_count > 0 && sequence_records[sequence_count - 1].lsn > wal_flushed)
		sequence_count--;
	sequence_last = sequence_count > 0 ? sequence_records[sequence_count - 1].value : 0;
	wal_inserted = wal_flushed;
	sim_trace("recovery: %lld transactions lost, sequence goes on behind %lld", lost, sequence_last);
}
