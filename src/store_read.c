/*
 * store_read.c
 *	  What the relay reads of the log by position: what is new.
 *
 * One rule for live events, backlog, overflow and restart (PROTOCOL.md):
 * first the end of the numbers, then prepared transactions that have ended,
 * then the ring, then a snapshot; read up to that end only. Whoever holds a
 * position below it and isn't visible yet will push it. Each relay keeps the
 * rule by itself: it reads all rows, and passes over those of others' slots.
 *
 * Nothing is handed on that isn't durable: the commit log knows how far the
 * WAL must be flushed for a transaction that committed asynchronously.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "feed.h"
#include "clock.h"
#include "standing.h"
#include "store_read.h"

/* Ranges taken from the ring at once. */
#define DRAIN_BATCH 256

/* ---------------------------------------------------------- transactions */

/* Positions that don't exist: of a transaction that reads nothing of the log. */
#define NOTHING PG_INT64_MAX

/* What others have put into the log is never seen without the word that it isn't to be published. */
static void
leave_unless_armed(OutboxRelay *relay, int64 from)
{
	if (from != NOTHING && !outbox_standing_is_armed())
		outbox_relay_leave(relay, "the database is not armed any more");
}

static void
lock_children(OutboxRelay *relay, const OutboxCatalog *catalog, int64 from, int64 wait_from)
{
	relay->children = relay->children_missing = 0;
	if (from != NOTHING)
		relay->children = outbox_ring_lock(relay->database, catalog, from, wait_from, &relay->children_missing);
}

/*
 * Starts a transaction with a snapshot; in a client's session, whose transaction
 * goes on, takes a new snapshot only. When the extension is gone there is nothing
 * left to do here: the process ends, quietly. Children of the log that may hold
 * positions from `from` on are locked before the snapshot, see outbox_ring_lock().
 */
void
outbox_store_begin_reading(OutboxRelay *relay, int64 from, int64 wait_from)
{
	const OutboxCatalog *catalog;

	if (relay->session)
	{
		lock_children(relay, outbox_database_catalog(false), from, wait_from);
		PushActiveSnapshot(GetLatestSnapshot());
		leave_unless_armed(relay, from);
		return;
	}
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog == NULL || catalog->sequence != relay->sequence)
	{
		AbortCurrentTransaction();
		proc_exit(0);
	}
	lock_children(relay, catalog, from, wait_from);
	PushActiveSnapshot(GetTransactionSnapshot());
	leave_unless_armed(relay, from);
}

/* The same for a transaction that only records something. */
void
outbox_store_begin(OutboxRelay *relay)
{
	outbox_store_begin_reading(relay, NOTHING, NOTHING);
}

/* Ends it, and tells autovacuum what was written. */
void
outbox_store_end(OutboxRelay *relay)
{
	PopActiveSnapshot();
	if (relay->session)
		return;
	CommitTransactionCommand();
	(void) pgstat_report_stat(false);
}

/* ---------------------------------------------------------------- ranges */

static void
add_range(OutboxRangeList *list, int64 lo, int64 hi)
{
	if (lo > hi)
		return;
	if (list->count == list->space)
	{
		list->space = Max(64, list->space * 2);
		if (list->ranges == NULL)
			list->ranges = MemoryContextAlloc(TopMemoryContext, list->space * sizeof(OutboxRange));
		else
			list->ranges = repalloc_huge(list->ranges, list->space * sizeof(OutboxRange));
	}
	list->ranges[list->count++] = (OutboxRange) {lo, hi};
}

static int
compare_ranges(const void *a, const void *b)
{
	int64		left = ((const OutboxRange *) a)->lo;
	int64		right = ((const OutboxRange *) b)->lo;

	return left < right ? -1 : left > right;
}

/* Sorted and without overlaps, so that an aggregate's rows are met in position order. */
static void
sort_ranges(OutboxRangeList *list)
{
	int			kept = 0;

	if (list->count < 2)
		return;
	qsort(list->ranges, list->count, sizeof(OutboxRange), compare_ranges);
	for (int i = 1; i < list->count; i++)
	{
		if (list->ranges[i].lo <= list->ranges[kept].hi + 1)
			list->ranges[kept].hi = Max(list->ranges[kept].hi, list->ranges[i].hi);
		else
			list->ranges[++kept] = list->ranges[i];
	}
	list->count = kept + 1;
}

/* What the pass has gone by is late; the rest it will meet itself. */
static void
note_pushed(OutboxRelay *relay, const OutboxFeedEntry *entries, int count)
{
	for (int i = 0; i < count; i++)
	{
		const OutboxRange *range = &entries[i].range;

		add_range(&relay->late, range->lo, Min(range->hi, relay->read_up_to));
		relay->pushed_up_to = Max(relay->pushed_up_to, range->hi);
	}
}

/*
 * Remembers of some of these pushes when they were committed, spread over all,
 * as far as there is room: a sample is enough to time the way from the commit.
 */
static void
sample_pushed(OutboxRelay *relay, const OutboxFeedEntry *entries, int count)
{
	int			room = OUTBOX_SAMPLES - relay->sample_count;
	int			step = room == 0 ? 0 : (count + room - 1) / room;
	int64		distance;

	if (room == 0 || count == 0)
		return;
	distance = GetCurrentTimestamp() - outbox_clock_now();
	for (int i = 0; i < count; i += step)
	{
		if (entries[i].committed_at != 0)
			relay->samples[relay->sample_count++] = (OutboxSample) {entries[i].range, entries[i].committed_at - distance};
	}
}

/* Samples that have been read make room. */
static void
drop_samples(OutboxRelay *relay)
{
	int			kept = 0;

	if (relay->late.count > 0)
		return;
	for (int i = 0; i < relay->sample_count; i++)
	{
		if (relay->samples[i].range.hi > relay->read_up_to)
			relay->samples[kept++] = relay->samples[i];
	}
	relay->sample_count = kept;
}

/* When a position was committed, by the relay's clock; 0: it isn't in the sample. */
static int64
commit_time(const OutboxRelay *relay, int64 position)
{
	for (int i = 0; i < relay->sample_count; i++)
	{
		if (position >= relay->samples[i].range.lo && position <= relay->samples[i].range.hi)
			return relay->samples[i].committed_at;
	}
	return 0;
}

/* Steps 2 and 3 of the rule: what prepared array and ring hold, as far as the pass has gone by. */
static void
collect_late(OutboxRelay *relay)
{
	OutboxFeedEntry entries[DRAIN_BATCH];
	int			count;

	drop_samples(relay);
	/* Another relay may have collected it, and pushed it into our ring before: so the ring comes second. */
	relay->keys_left_behind |= outbox_feed_collect_prepared(relay->database);
	do
	{
		count = outbox_feed_drain(relay->database, relay->member.place, entries, DRAIN_BATCH);
		note_pushed(relay, entries, count);
		sample_pushed(relay, entries, count);
	} while (count == DRAIN_BATCH);
	sort_ranges(&relay->late);
}

/* ------------------------------------------------------------------ rows */

/*
 * A visible row isn't necessarily durable: with synchronous_commit = off its
 * transaction's commit record may still be on its way to disk.
 */
void
outbox_reader_note_commit(OutboxReader *reader, HeapTuple tuple)
{
	XLogRecPtr	lsn = TransactionIdGetCommitLSN(HeapTupleHeaderGetXmin(tuple->t_data));

	reader->durable = Max(reader->durable, lsn);
}

/* Before anything that was read is sent. */
void
outbox_reader_make_durable(const OutboxReader *reader)
{
	if (!XLogRecPtrIsInvalid(reader->durable) && XLogNeedsFlush(reader->durable))
		XLogFlush(reader->durable);
}

/* For whoever sets log_min_messages to debug1: what a batch costs. */
void
outbox_reader_log(const OutboxReader *reader, const char *what, TimestampTz started)
{
	ereport(DEBUG1,
			(errmsg_internal("outbox relay %s %d rows in %lld us", what, OUTBOX_READ_BATCH - reader->budget,
							 (long long) (GetCurrentTimestamp() - started))));
}

/* The schedule's key of an event: its aggregate, or itself where no order is kept. */
uint64
outbox_store_key(const OutboxRelay *relay, uint64 agg_hash, int64 position)
{
	return relay->preserve_order ? agg_hash : (uint64) position;
}

/* Whether an error says something about the row, and not about the machine. */
static bool
is_about_row(int sqlerrcode)
{
	int			category = ERRCODE_TO_CATEGORY(sqlerrcode);

	return category != ERRCODE_TO_CATEGORY(ERRCODE_INSUFFICIENT_RESOURCES) &&
		category != ERRCODE_TO_CATEGORY(ERRCODE_OPERATOR_INTERVENTION);
}

/* Builds an event in a subtransaction; one that can't be read becomes a broken event. */
static OutboxEvent *
build_carefully(OutboxRelay *relay, const OutboxLogScan *scan, HeapTuple tuple)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	OutboxEvent *volatile event;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		event = outbox_log_scan_event(scan, tuple, relay->row_context);
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		if (!is_about_row(error->sqlerrcode))
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
		event = outbox_held_broken(scan->home, outbox_log_scan_int64(scan, tuple, LOG_POSITION, 0),
								   (uint64) outbox_log_scan_int64(scan, tuple, LOG_AGG_HASH, 0),
								   psprintf("could not read the event: %s", error->message));
	}
	PG_END_TRY();
	return event;
}

/*
 * The event of a row, with the schedule's key. If it can't be read, the process
 * ends; the next relay is told to be careful and so finds out which row it is.
 */
OutboxEvent *
outbox_reader_build(OutboxReader *reader, const OutboxLogScan *scan, HeapTuple tuple)
{
	OutboxRelay *relay = reader->relay;
	OutboxEvent *volatile event;

	outbox_reader_note_commit(reader, tuple);
	if (relay->careful)
		event = build_carefully(relay, scan, tuple);
	else
	{
		PG_TRY();
		{
			event = outbox_log_scan_event(scan, tuple, relay->row_context);
		}
		PG_CATCH();
		{
			pg_atomic_write_u32(&relay->database->careful, 1);
			PG_RE_THROW();
		}
		PG_END_TRY();
	}
	event->schedule.aggregate = outbox_store_key(relay, event->agg_hash, event->schedule.position);
	return event;
}

/* Whether an aggregate's events go to the dead letters unsent. */
bool
outbox_store_is_parked(const OutboxRelay *relay, uint64 agg_hash)
{
	return relay->preserve_order && hash_get_num_entries(relay->parked) > 0 &&
		hash_search(relay->parked, &agg_hash, HASH_FIND, NULL) != NULL;
}

/* Hands a row that is new to the schedule. */
static void
hand_on(OutboxReader *reader, const OutboxLogScan *scan, HeapTuple tuple)
{
	OutboxRelay *relay = reader->relay;
	uint64		agg_hash = (uint64) outbox_log_scan_int64(scan, tuple, LOG_AGG_HASH, 0);
	int64		position = outbox_log_scan_int64(scan, tuple, LOG_POSITION, 0);
	uint64		key = outbox_store_key(relay, agg_hash, position);
	bool		taken;

	if (outbox_schedule_would_defer(relay->schedule, key) || outbox_store_is_parked(relay, agg_hash))
		taken = outbox_schedule_defer(relay->schedule, key, position, outbox_log_scan_int64(scan, tuple, LOG_CREATED_AT, 0));
	else
	{
		OutboxEvent *event = outbox_reader_build(reader, scan, tuple);

		event->committed_at = commit_time(relay, position);
		taken = outbox_schedule_add(relay->schedule, &event->schedule, outbox_clock_now()) != SCHEDULE_NO_MEMORY;
	}
	if (!taken)
		outbox_relay_out_of_memory();
}

/* True if the position wasn't known before. */
static bool
see(OutboxReader *reader, int64 position)
{
	TrackerSee	result = outbox_tracker_see(reader->relay->tracker, position);

	if (result == TRACKER_NO_MEMORY)
		outbox_relay_out_of_memory();
	return result == TRACKER_NEW;
}

/*
 * Hands on what precedes a row of the pass in its own transaction and
 * aggregate. The pass may have gone by those while the transaction was open,
 * and if it became visible between the drain and the snapshot, its push comes
 * in the next round only: too late for their order. They are the rows before
 * this one that aren't seen yet; all older ones of the aggregate were pushed
 * before this transaction drew its first position.
 */
static void
take_predecessors(OutboxReader *reader, int64 aggregate, int64 position)
{
	OutboxRelay *relay = reader->relay;
	int64		from = outbox_tracker_watermark(relay->tracker) + 1;
	ScanKeyData keys[2];
	OutboxLogMerge merge;
	List	   *found = NIL;	/* rows, and in the same order the scans that they come from */
	List	   *scans = NIL;
	ListCell   *row;
	ListCell   *scan;

	ScanKeyInit(&keys[0], LOG_AGG_HASH, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(aggregate));
	ScanKeyInit(&keys[1], LOG_POSITION, BTLessStrategyNumber, F_INT8LT, Int64GetDatum(position));
	outbox_log_merge_open(&merge, relay->database, outbox_ring_reaching(relay->database, relay->children, from),
						  OUTBOX_LOG_BY_AGGREGATE, keys, 2, BackwardScanDirection);
	for (; merge.at != NULL && !outbox_tracker_is_seen(relay->tracker, outbox_log_merge_position(&merge));
		 outbox_log_merge_next(&merge))
	{
		outbox_membership_tick(relay);
		found = lcons(heap_copytuple(merge.at->tuple), found);
		scans = lcons(merge.at, scans);
	}
	forboth(row, found, scan, scans)
	{
		HeapTuple	tuple = lfirst(row);

		outbox_membership_tick(relay);
		(void) see(reader, outbox_log_scan_int64(lfirst(scan), tuple, LOG_POSITION, 0));
		hand_on(reader, lfirst(scan), tuple);
	}
	list_free_deep(found);
	outbox_log_merge_close(&merge);
}

/*
 * A row of the pass, or of a late range: hands it to the schedule unless it is
 * known. False: not now, its predecessors may be on their way into another child.
 */
static bool
take_row(OutboxReader *reader, const OutboxLogScan *scan)
{
	int64		position = outbox_log_scan_position(scan);
	int64		follows = outbox_log_scan_int64(scan, scan->tuple, LOG_FOLLOWS, 0);
	bool		has_predecessors;

	if (!outbox_relay_owns(reader->relay, (uint64) outbox_log_scan_int64(scan, scan->tuple, LOG_AGG_HASH, 0)))
	{
		/* Another relay's: so that the watermark of ours gets by. */
		if (!outbox_tracker_settle(reader->relay->tracker, position))
			outbox_relay_out_of_memory();
		return true;
	}
	has_predecessors = follows != 0 && !outbox_tracker_is_seen(reader->relay->tracker, follows);
	if (has_predecessors && reader->relay->children_missing != 0)
		return false;
	if (!see(reader, position))
		return true;
	if (has_predecessors)
		take_predecessors(reader, outbox_log_scan_int64(scan, scan->tuple, LOG_AGG_HASH, 0), position);
	hand_on(reader, scan, scan->tuple);
	return true;
}

/*
 * Reads positions lo..hi in order until the budget or the schedule's room is
 * used up. Returns the last position that is done with: hi, or less.
 */
static int64
read_range(OutboxReader *reader, int64 lo, int64 hi)
{
	OutboxRelay *relay = reader->relay;
	ScanKeyData keys[2];
	OutboxLogMerge merge;
	int64		done = hi;

	ScanKeyInit(&keys[0], LOG_POSITION, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(lo));
	ScanKeyInit(&keys[1], LOG_POSITION, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(hi));
	outbox_log_merge_open(&merge, relay->database, outbox_ring_reaching(relay->database, relay->children, lo),
						  OUTBOX_LOG_BY_POSITION, keys, 2, ForwardScanDirection);
	for (; merge.at != NULL; outbox_log_merge_next(&merge))
	{
		if (reader->budget <= 0 || !outbox_schedule_has_room(relay->schedule))
		{
			done = outbox_log_merge_position(&merge) - 1;
			break;
		}
		CHECK_FOR_INTERRUPTS();
		outbox_membership_tick(relay);
		if (!take_row(reader, merge.at))
		{
			done = outbox_log_merge_position(&merge) - 1;
			break;
		}
		reader->budget--;
	}
	outbox_log_merge_close(&merge);
	return done;
}

/* Reads late ranges, lowest first; what the budget doesn't allow stays in the list. */
static void
read_late(OutboxReader *reader)
{
	OutboxRangeList *late = &reader->relay->late;
	int			finished = 0;

	while (finished < late->count && reader->budget > 0)
	{
		OutboxRange *range = &late->ranges[finished];
		int64		done = read_range(reader, range->lo, range->hi);

		if (done < range->hi)
		{
			range->lo = done + 1;
			break;
		}
		finished++;
	}
	memmove(late->ranges, late->ranges + finished, (late->count - finished) * sizeof(OutboxRange));
	late->count -= finished;
}

/* The rest of the pass: (read_up_to, end], without stretches that are known already. */
static void
read_pass(OutboxReader *reader, int64 end)
{
	OutboxRelay *relay = reader->relay;
	int64		first;
	int64		last;

	while (reader->budget > 0 && relay->read_up_to < end &&
		   outbox_tracker_unseen(relay->tracker, relay->read_up_to + 1, end, &first, &last))
	{
		int64		done = read_range(reader, first, last);

		relay->read_up_to = done;
		if (done < last)
			return;
	}
	if (reader->budget > 0)
		relay->read_up_to = Max(relay->read_up_to, end);
}

/* Reads what is new, by the rule in the head comment, as far as there is room. */
void
outbox_store_read(OutboxRelay *relay)
{
	OutboxReader reader = {relay, OUTBOX_READ_BATCH, InvalidXLogRecPtr};
	uint64		flush_calls = pg_atomic_read_u64(&relay->database->flush_calls);
	int64		end = pg_atomic_read_u64(&relay->database->max_assigned);
	TimestampTz started = GetCurrentTimestamp();

	pg_memory_barrier();
	collect_late(relay);
	OUTBOX_TEST_POINT("drained");
	if (relay->late.count > 0 || relay->read_up_to < end)
	{
		int64		from = relay->late.count > 0 ? relay->late.ranges[0].lo : relay->read_up_to + 1;

		/* Rows of a transaction are read together with its earlier ones. */
		outbox_store_begin_reading(relay, Min(from, outbox_tracker_watermark(relay->tracker) + 1), from);
		read_late(&reader);
		if (relay->late.count == 0)
			read_pass(&reader, end);
		outbox_store_end(relay);
		outbox_reader_log(&reader, "read", started);
		outbox_reader_make_durable(&reader);
	}
	/* A push may lie above the end that was read before it. */
	relay->more_to_read = relay->late.count > 0 || relay->read_up_to < Max(end, relay->pushed_up_to);
	relay->flush_read = flush_calls;
	pg_atomic_write_u64(&relay->self->read_up_to, relay->read_up_to);
}
