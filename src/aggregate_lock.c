/*
 * aggregate_lock.c
 *	  One lock per aggregate with un-committed events, held to the end of the
 *	  transaction, without the lock manager's limits.
 *
 * A hash table of fixed size in the main shared memory maps {database, 64-bit
 * key} to the full id of the top transaction that holds the key. Entries are
 * taken in enqueue() and given back in the commit and abort callbacks, which
 * is why the table isn't a dshash: a callback must not attach a segment. Its
 * pages cost memory only once they were used; entries are handed out from a
 * free list first, so it stays as small as the open transactions were.
 *
 * Waiting is done with heavyweight locks, so the deadlock detector sees it:
 * waiters of one key queue on an advisory-class lock of that key, and the
 * first of them waits for the holder's transaction lock. That lock, and not
 * "no longer in progress", decides whether the holder is done: it is still
 * held while the holder's commit callback pushes its positions.
 *
 * Locking: a partition's LWLock guards its buckets and the entries in them;
 * free_mutex (a spinlock) guards the free list.
 */
#include "outbox.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "aggregate_lock.h"

#define PARTITIONS 64
#define NO_ENTRY PG_UINT32_MAX

/* In pg_locks: locktype advisory, objsubid 101; users' own have 1 and 2. */
#define LOCK_CLASS_AGGREGATE 101

typedef struct Entry
{
	uint64		key;
	uint64		holder;			/* full top transaction id */
	int64		last_position;	/* that the holder drew under this key, 0: none; the holder's own to write */
	Oid			dboid;
	uint32		next;			/* in its bucket, or in the free list */
} Entry;

typedef struct LockTable
{
	LWLock		partitions[PARTITIONS];
	slock_t		free_mutex;
	uint32		free_first;
	uint32		untouched;		/* entries from here on were never used */
	uint32		entry_count;
	uint32		bucket_count;	/* a power of two */
	/* followed by uint32 buckets[bucket_count] and Entry entries[entry_count] */
} LockTable;

static LockTable *table = NULL;
static uint32 *buckets;
static Entry *entries;

/* Entries that the current transaction holds; lives in TopMemoryContext. */
static uint32 *held = NULL;
static int	held_count = 0;
static int	held_space = 0;

/* Free numbers of buckets are what makes zero mean "no entry": stored + 1. */
#define BUCKET_FIRST(b) (buckets[b] - 1)

static uint32
wanted_buckets(void)
{
	uint32		count = 1024;

	while (count < (uint32) outbox_max_open_aggregates && count < (1U << 30))
		count <<= 1;
	return count;
}

Size
outbox_aggregate_lock_shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(LockTable));

	size = add_size(size, MAXALIGN(mul_size(wanted_buckets(), sizeof(uint32))));
	size = add_size(size, mul_size(outbox_max_open_aggregates, sizeof(Entry)));
	return MAXALIGN(size);
}

/* Called with AddinShmemInitLock held; shared memory comes zeroed. */
void
outbox_aggregate_lock_shmem_init(int tranche)
{
	bool		found;

	table = ShmemInitStruct("outbox aggregate locks", outbox_aggregate_lock_shmem_size(), &found);
	if (!found)
	{
		for (int i = 0; i < PARTITIONS; i++)
			LWLockInitialize(&table->partitions[i], tranche);
		SpinLockInit(&table->free_mutex);
		table->free_first = NO_ENTRY;
		table->untouched = 0;
		table->entry_count = outbox_max_open_aggregates;
		table->bucket_count = wanted_buckets();
	}
	buckets = (uint32 *) ((char *) table + MAXALIGN(sizeof(LockTable)));
	entries = (Entry *) ((char *) buckets + MAXALIGN(table->bucket_count * sizeof(uint32)));
}

static uint32
bucket_of(Oid dboid, uint64 key)
{
	return (uint32) (key ^ (key >> 32) ^ (dboid * 0x9E3779B1U)) & (table->bucket_count - 1);
}

static LWLock *
partition_of(uint32 bucket)
{
	return &table->partitions[bucket % PARTITIONS];
}

/* The caller holds the bucket's partition. */
static Entry *
find(uint32 bucket, Oid dboid, uint64 key)
{
	for (uint32 i = BUCKET_FIRST(bucket); i != NO_ENTRY; i = entries[i].next)
	{
		if (entries[i].key == key && entries[i].dboid == dboid)
			return &entries[i];
	}
	return NULL;
}

static uint32
take_free_entry(void)
{
	uint32		index;

	SpinLockAcquire(&table->free_mutex);
	index = table->free_first;
	if (index != NO_ENTRY)
		table->free_first = entries[index].next;
	else if (table->untouched < table->entry_count)
		index = table->untouched++;
	SpinLockRelease(&table->free_mutex);
	return index;
}

/* The caller holds the bucket's partition exclusively. */
static bool
insert(uint32 bucket, Oid dboid, uint64 key, uint64 holder, uint32 *index)
{
	*index = take_free_entry();
	if (*index == NO_ENTRY)
		return false;
	entries[*index].key = key;
	entries[*index].dboid = dboid;
	entries[*index].holder = holder;
	entries[*index].last_position = 0;
	entries[*index].next = BUCKET_FIRST(bucket);
	buckets[bucket] = *index + 1;
	return true;
}

/* Takes an entry out of its bucket and frees it. The caller holds the partition exclusively. */
static void
remove_entry(uint32 bucket, uint32 index)
{
	uint32		i = BUCKET_FIRST(bucket);

	if (i == index)
		buckets[bucket] = entries[index].next + 1;
	else
	{
		while (entries[i].next != index)
			i = entries[i].next;
		entries[i].next = entries[index].next;
	}

	SpinLockAcquire(&table->free_mutex);
	entries[index].next = table->free_first;
	table->free_first = index;
	SpinLockRelease(&table->free_mutex);
}

/* So that remembering an entry can't fail once it is in the table. */
static void
make_room_in_held(void)
{
	if (held_count < held_space)
		return;
	if (held == NULL)
		held = MemoryContextAlloc(TopMemoryContext, 64 * sizeof(uint32));
	else
		held = repalloc_huge(held, (Size) held_space * 2 * sizeof(uint32));
	held_space = held_space == 0 ? 64 : held_space * 2;
}

static void
report_full(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("too many aggregates in open transactions"),
			 errdetail("Open transactions hold events of %u aggregates, which is the limit.", table->entry_count),
			 errhint("Enqueue in smaller transactions, or raise \"outbox.max_open_aggregates\" and restart the server. See docs/failures.md, \"Too many aggregates\".")));
}

/*
 * Takes the key if nobody holds it, or if its holder is gone_holder. Returns
 * 0 when it is ours now, else who holds it.
 */
static uint64
try_take(uint64 key, uint64 self, uint64 gone_holder)
{
	uint32		bucket = bucket_of(MyDatabaseId, key);
	Entry	   *entry;
	uint64		holder = 0;
	bool		full = false;

	make_room_in_held();

	LWLockAcquire(partition_of(bucket), LW_EXCLUSIVE);
	entry = find(bucket, MyDatabaseId, key);
	if (entry == NULL)
	{
		uint32		index;

		if (insert(bucket, MyDatabaseId, key, self, &index))
			held[held_count++] = index;
		else
			full = true;
	}
	else if (entry->holder == gone_holder)
	{
		entry->holder = self;
		entry->last_position = 0;
		held[held_count++] = entry - entries;
	}
	else if (entry->holder != self)
		holder = entry->holder;
	LWLockRelease(partition_of(bucket));

	if (full)
		report_full();
	return holder;
}

static void
set_queue_tag(LOCKTAG *tag, uint64 key)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (key >> 32), (uint32) key, LOCK_CLASS_AGGREGATE);
}

/* Waits until the key can be had; the caller's errcontext names the aggregate. */
static void
wait_and_take(uint64 key, uint64 self, uint64 holder)
{
	LOCKTAG		tag;

	set_queue_tag(&tag, key);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	while (holder != 0)
	{
		XactLockTableWait((TransactionId) holder, NULL, NULL, XLTW_None);
		holder = try_take(key, self, holder);
	}
	LockRelease(&tag, ExclusiveLock, false);
}

typedef struct WaitContext
{
	const char *(*describe)(void *arg, int index);
	void	   *arg;
	int			index;
} WaitContext;

static void
wait_error_context(void *arg)
{
	WaitContext *context = arg;

	errcontext("while waiting for a transaction that holds %s",
			   context->describe(context->arg, context->index));
}

/* Without the preloaded library: the lock manager serves, with its limits. */
static void
take_from_lock_manager(uint64 key)
{
	LOCKTAG		tag;

	set_queue_tag(&tag, key);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

/*
 * Takes all keys for the current top transaction, which must have an id, and
 * waits where another transaction holds one. keys are sorted and distinct, so
 * that two calls with the same keys don't deadlock. describe(arg, i) names
 * what keys[i] stands for, in the error context of a wait that fails.
 */
void
outbox_aggregate_lock_acquire(const uint64 *keys, int count,
							  const char *(*describe)(void *arg, int index), void *arg)
{
	uint64		self = U64FromFullTransactionId(GetTopFullTransactionId());
	WaitContext context = {describe, arg, 0};
	ErrorContextCallback callback = {error_context_stack, wait_error_context, &context};

	for (context.index = 0; context.index < count; context.index++)
	{
		uint64		key = keys[context.index];
		uint64		holder = table == NULL ? PG_UINT64_MAX : try_take(key, self, 0);

		/* A holder that can't be waited for has left its entry behind. */
		if (holder != 0 && table != NULL && outbox_xact_is_over((TransactionId) holder))
			holder = try_take(key, self, holder);
		if (holder == 0)
			continue;
		error_context_stack = &callback;
		if (table == NULL)
			take_from_lock_manager(key);
		else
			wait_and_take(key, self, holder);
		error_context_stack = callback.previous;
	}
}

/*
 * Notes a position that this transaction has drawn under a key that it holds.
 * Returns the one before it, 0: none.
 */
int64
outbox_aggregate_lock_note_position(uint64 key, int64 position)
{
	uint32		bucket = bucket_of(MyDatabaseId, key);
	int64		previous = 0;
	Entry	   *entry;

	LWLockAcquire(partition_of(bucket), LW_SHARED);
	entry = find(bucket, MyDatabaseId, key);
	if (entry != NULL)
	{
		previous = entry->last_position;
		entry->last_position = position;
	}
	LWLockRelease(partition_of(bucket));
	return previous;
}

/* Gives back all keys of the current transaction. For commit and abort callbacks: can't fail. */
void
outbox_aggregate_lock_release_all(void)
{
	while (held_count > 0)
	{
		uint32		index = held[--held_count];
		uint32		bucket = bucket_of(MyDatabaseId, entries[index].key);

		LWLockAcquire(partition_of(bucket), LW_EXCLUSIVE);
		remove_entry(bucket, index);
		LWLockRelease(partition_of(bucket));
	}
}

/* The transaction is prepared: its keys stay, with nobody to give them back. */
void
outbox_aggregate_lock_leave(void)
{
	held_count = 0;
}

/* After a restart: a prepared transaction holds this key again. */
void
outbox_aggregate_lock_restore(uint64 key, FullTransactionId holder)
{
	uint32		bucket = bucket_of(MyDatabaseId, key);
	uint32		index;
	bool		full = false;

	LWLockAcquire(partition_of(bucket), LW_EXCLUSIVE);
	if (find(bucket, MyDatabaseId, key) == NULL)
		full = !insert(bucket, MyDatabaseId, key, U64FromFullTransactionId(holder), &index);
	LWLockRelease(partition_of(bucket));
	if (full)
		report_full();
}

/*
 * Frees keys in this database that prepared transactions left behind when
 * they ended. Reads the whole table: called by the relay, and only after a
 * prepared transaction was seen to end.
 */
void
outbox_aggregate_lock_sweep(void)
{
	for (uint32 bucket = 0; bucket < table->bucket_count; bucket++)
	{
		uint32		i;

		if (buckets[bucket] == 0)
			continue;
		LWLockAcquire(partition_of(bucket), LW_EXCLUSIVE);
		i = BUCKET_FIRST(bucket);
		while (i != NO_ENTRY)
		{
			uint32		next = entries[i].next;

			/* A live transaction's own entries are its own to delete: it remembers them. */
			if (entries[i].dboid == MyDatabaseId && !TransactionIdIsInProgress((TransactionId) entries[i].holder) &&
				outbox_xact_is_over((TransactionId) entries[i].holder))
				remove_entry(bucket, i);
			i = next;
		}
		LWLockRelease(partition_of(bucket));
	}
}
