/*
 * feed.pml
 *	  From the application's transactions to the relay's queue: order,
 *	  visibility, durability of what is handed on, the watermark.
 *
 * Transactions draw positions, insert, commit, abort or are prepared; a relay
 * reads by the rule of src/store_read.c and writes watermarks; the server may
 * crash. What the relay does with an event that it has read is one step here:
 * delivery.pml is about that. docs/protocol.md explains both.
 *
 * Sets of positions or transactions are bit masks. A range of positions is the
 * set of its members: the relay sorts and merges ranges in any case.
 *
 * Sizes:    TX transactions of the given KINDS (3 at most, if given), POS
 *           positions, RING entries in the ring, PREPARED_ENTRIES in the array
 *           of prepared transactions, RELAYS readers (the second one serves
 *           aggregate 1), WATERMARKS attempts to write one before the end.
 * Faults:   CRASHES of the server, KILLS of a relay, FLUSHES by the WAL writer.
 * Switches: NO_PREPARE, NO_ABORT, PARTIAL (a read may stop after one row),
 *           MERGE (a transaction's positions are pushed as one range),
 *           SETTLE_AT_ONCE (what was handed on is published and recorded in the
 *           same step).
 * Each name in an #ifdef that begins with BREAK_ takes one rule away.
 */

#ifndef TX
#define TX 3
#endif
#ifndef POS
#define POS 4
#endif
#ifndef RING
#define RING 1
#endif
#ifndef PREPARED_ENTRIES
#define PREPARED_ENTRIES 1
#endif
#ifndef RELAYS
#define RELAYS 1
#endif
#ifndef WATERMARKS
#define WATERMARKS 1
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef FLUSHES
#define FLUSHES 0
#endif

#define BIT(n) (1 << (n))
#define HAS(set, n) (((set) >> (n)) & 1)
#define UP_TO(n) ((2 << (n)) - 1)

mtype = { NEW, ACTIVE, PREPARED, COMMITTED, ABORTED, LOST };

/* ------------------------------------------------------------- the server */

/* The sequence, and per position: who drew it, its aggregate, what it follows. */
byte seq;
byte row_tx[POS + 1];
byte row_follows[POS + 1];
byte rows_of_1;				/* positions of aggregate 1, all others are of 0 */

/* Transactions. A transaction's lock outlives its being in progress. */
mtype state[TX + 1] = NEW;
byte xact_locks;
byte started;
byte finished;
byte reserved;

/* Shared memory. */
byte max_assigned;
byte bound[TX + 1];
byte holder[2];				/* the aggregate keys */
byte key_last[2];			/* last position drawn under the key */
byte ring[RELAYS];			/* what each reader has before it */
byte ring_entries[RELAYS];
byte overflow[RELAYS];
byte prepared_tx[PREPARED_ENTRIES];
byte prepared_runs[PREPARED_ENTRIES];
byte own_watermark[RELAYS];

/* Tables, and how much of them is flushed. */
byte committed, flushed_committed;
byte ledger, flushed_ledger;
byte watermark, flushed_watermark;
byte flushed_seq;

/* The stream. */
byte published;

/* Faults, and those who die of them. */
byte crashes = CRASHES;
byte kills = KILLS;
byte flushes = FLUSHES;
byte watermarks = WATERMARKS;
byte killed_tx;
byte killed_relays;
byte done_relays;

/* The properties. They are assigned where they are asserted, so they take no state. */
hidden byte predecessors_are_handed_on;
hidden byte only_committed_is_handed_on;
hidden byte published_survives;
hidden byte watermark_is_true;
hidden byte position_is_new;
hidden byte nothing_is_lost;
hidden byte watermark_arrives;
hidden byte i, j, k, low, high, set_of;

#define IN_PROGRESS(t) (state[t] == ACTIVE || state[t] == PREPARED)
#define AGGREGATE(p) HAS(rows_of_1, p)

/* Everything in the WAL so far is on disk. */
inline flush()
{
	flushed_committed = committed;
	flushed_ledger = ledger;
	flushed_watermark = watermark;
	flushed_seq = seq;
}

/* set := the range from its lowest to its highest member. */
inline widen(set)
{
	low = 0;
	high = 0;
	for (i : 1 .. POS)
	{
		if
		:: HAS(set, i) ->
			high = i;
			low = (low == 0 -> i : low)
		:: else
		fi
	}
	set = (low == 0 -> 0 : UP_TO(high) & ~UP_TO(low - 1));
	i = 0;
	low = 0;
	high = 0;
}

/* feed.c, push(). In a d_step. */
inline push(range)
{
	for (k : 0 .. RELAYS - 1)
	{
		if
		:: overflow[k] != 0 ->
			set_of = overflow[k] | (range);
			widen(set_of);
			overflow[k] = set_of
		:: overflow[k] == 0 && ring_entries[k] < RING ->
			ring[k] = ring[k] | (range);
			ring_entries[k]++
		:: else ->
#ifndef BREAK_OVERFLOW
			overflow[k] = (range)
#else
			skip
#endif
		fi
	}
	set_of = 0;
	k = 0
}

/* Whether the watermark w claims nothing false: all at or below is terminal and recorded. */
inline check_watermark(w)
{
	watermark_is_true = true;
	for (i : 1 .. POS)
	{
		if
		:: i <= w ->
			watermark_is_true = watermark_is_true && i <= seq && !IN_PROGRESS(row_tx[i]) &&
				(state[row_tx[i]] != COMMITTED || HAS(ledger, i))
		:: else
		fi
	}
	i = 0;
	assert(watermark_is_true);
	watermark_is_true = 0
}

/* ----------------------------------------------------------- transactions */

#ifdef BREAK_WAIT_FOR_LOCK
#define KEY_CAN_BE_HAD(a) (holder[a] == 0 || holder[a] == t || !IN_PROGRESS(holder[a]))
#else
#define KEY_CAN_BE_HAD(a) (holder[a] == 0 || holder[a] == t || !HAS(xact_locks, holder[a]))
#endif

/* aggregate_lock.c, outbox_aggregate_lock_acquire() */
inline take_key()
{
	atomic
	{
		KEY_CAN_BE_HAD(a) ->
		if
		:: holder[a] != t ->
			holder[a] = t;
			key_last[a] = 0
		:: else
		fi
	}
}

/* aggregate_lock.c, outbox_aggregate_lock_release_all() */
inline release_keys()
{
	atomic					/* not a d_step: one may not jump into it */
	{
		for (i : 0 .. 1)
		{
			if
			:: holder[i] == t ->
				holder[i] = 0;
				key_last[i] = 0
			:: else
			fi
		}
		i = 0
	}
}

/* feed.c, outbox_feed_announce() */
#if WATERMARKS > 0
inline announce()
{
	if
	:: bound[t] == 0 ->
		b = max_assigned + 1;
		bound[t] = b;
		b = 0
	:: else
	fi
}

inline clear_bound()
{
	bound[t] = 0
}
#else
#define announce() skip
#define clear_bound() skip
#endif

/* feed.c, outbox_feed_next_position(), and the row. */
inline draw()
{
	d_step
	{
		seq++;
		position_is_new = seq > watermark && !HAS(ledger, seq);
		assert(position_is_new);
		position_is_new = 0;
		p = seq;
		mine = mine | BIT(p);
		row_tx[p] = t;
		row_follows[p] = 0;
		published = published & ~BIT(p);
		rows_of_1 = (a == 1 -> rows_of_1 | BIT(p) : rows_of_1 & ~BIT(p))
	}
}

inline raise_and_insert()
{
	d_step
	{
		max_assigned = (max_assigned < p -> p : max_assigned);
		row_follows[p] = key_last[a];
		key_last[a] = p;
		p = 0
	}
}

inline enqueue()
{
#ifdef BREAK_KEY_FIRST
	announce();
	draw();
	take_key();
	raise_and_insert()
#else
	take_key();
#ifdef BREAK_BOUND_FIRST
	draw();
	announce();
#else
	announce();
	draw();
#endif
	raise_and_insert()
#endif
}

/* One push for each run; feed.c, at_commit(). */
inline push_all()
{
#ifdef MERGE
	d_step
	{
		widen(mine);
		push(mine);
		mine = 0
	}
#else
	do
	:: d_step
		{
			mine != 0 ->
			j = 1;
			do
			:: !HAS(mine, j) -> j++
			:: else -> break
			od;
			mine = mine & ~BIT(j);
			push(BIT(j));
			j = 0
		}
	:: mine == 0 -> break
	od
#endif
}

inline commit_callback()
{
#ifdef BREAK_PUSH_BEFORE_KEYS
	release_keys();
	push_all();
	clear_bound()
#else
#ifdef BREAK_PUSH_BEFORE_BOUND
	clear_bound();
	push_all();
	release_keys()
#else
	push_all();
	release_keys();
	clear_bound()
#endif
#endif
}

inline abort_callback()
{
	atomic
	{
#ifndef NO_PREPARE
		for (i : 0 .. PREPARED_ENTRIES - 1)
		{
			if
			:: prepared_tx[i] == t ->
				prepared_tx[i] = 0;
				prepared_runs[i] = 0
			:: else
			fi
		}
		i = 0;
#endif
		mine = 0
	};
	release_keys();
	clear_bound()
}

/*
 * feed.c, before_prepare(): an entry that is free, or one that belongs to an
 * ended transaction, whose positions go to the ring. j stays PREPARED_ENTRIES
 * if there is none.
 */
inline enter_prepared_array()
{
	d_step
	{
		j = 0;
		do
		:: j < PREPARED_ENTRIES && prepared_tx[j] != 0 -> j++
		:: else -> break
		od;
		if
		:: j == PREPARED_ENTRIES ->
			j = 0;
			do
			:: j < PREPARED_ENTRIES && IN_PROGRESS(prepared_tx[j]) -> j++
			:: else -> break
			od;
			if
			:: j < PREPARED_ENTRIES ->
				push(prepared_runs[j])
			:: else
			fi
		:: else
		fi;
		if
		:: j < PREPARED_ENTRIES ->
			prepared_tx[j] = t;
			prepared_runs[j] = mine;
			entered = true
		:: else
		fi;
		j = 0
	}
}

/* What a transaction enqueues: events of aggregate 0 and 1. KINDS fixes it: a digit for each, first one leftmost. */
#define A 1
#define B 2
#define AA 3
#define AB 4
#ifdef KINDS
#define KIND(t) ((t) == TX -> KINDS % 10 : ((t) == TX - 1 -> KINDS / 10 % 10 : KINDS / 100 % 10))
#define TAKES(t, kind) (KIND(t) == (kind))
#else
#define TAKES(t, kind) true
#endif

proctype Tx(byte t)
{
	byte n, e, p, b, mine;
	bit a, kind_ab, entered;

	{
		/* Transactions are alike: they may as well start in the order of their numbers. */
		atomic
		{
			started == t - 1 ->
			started = t;
			if
			:: reserved < POS && TAKES(t, A) -> n = 1
			:: reserved < POS && TAKES(t, B) -> n = 1; a = 1
			:: reserved < POS - 1 && TAKES(t, AA) -> n = 2
			:: reserved < POS - 1 && TAKES(t, AB) -> n = 2; kind_ab = 1
			:: reserved == POS ->
				finished = finished | BIT(t);
				goto over
			fi;
			reserved = reserved + n;
			state[t] = ACTIVE;
			xact_locks = xact_locks | BIT(t)
		}
		do
		:: e < n ->
			enqueue();
			e++;
			a = kind_ab
		:: e == n -> break
		od;
		if
		:: d_step
			{
				state[t] = COMMITTED;
				committed = committed | BIT(t);
				flush()
			};
			commit_callback()
#if CRASHES > 0
		:: d_step
			{
				state[t] = COMMITTED;
				committed = committed | BIT(t)
			};
			commit_callback()
#endif
#ifndef NO_ABORT
		:: state[t] = ABORTED;
			abort_callback()
#endif
#ifndef NO_PREPARE
		:: enter_prepared_array();
			if
			:: entered ->
				d_step
				{
					state[t] = PREPARED;
					mine = 0;
					flush()
				};
				clear_bound()
			:: state[t] = ABORTED;
				abort_callback()
			fi
#endif
		fi
	} unless { HAS(killed_tx, t) };

	/* COMMIT PREPARED or ROLLBACK PREPARED, in whatever session and life of the server. */
#ifndef NO_PREPARE
	{
		if
		:: state[t] == PREPARED ->
			if
			:: d_step
				{
					state[t] = COMMITTED;
					committed = committed | BIT(t);
					flush()
				}
			:: state[t] = ABORTED
			fi
		:: else
		fi
	} unless { HAS(killed_tx, t) };
#endif
	atomic
	{
		xact_locks = xact_locks & ~BIT(t);
		n = 0;
		e = 0;
		p = 0;
		b = 0;
		mine = 0;
		a = 0;
		kind_ab = 0;
		entered = 0;
		finished = finished | BIT(t)
	}
over:
	skip
}

/* ------------------------------------------------------------------ relay */

#define MINE(p) (RELAYS == 1 || AGGREGATE(p) == me)
#define ALL_TX (UP_TO(TX) & ~1)

/* Steps 1 to 4 of the rule. */
inline note_end()
{
	end = max_assigned
}

/* feed.c, outbox_feed_collect_prepared(). With several readers all must hear of it. */
#ifndef NO_PREPARE
inline collect_prepared()
{
	d_step
	{
		for (j : 0 .. PREPARED_ENTRIES - 1)
		{
			if
			:: prepared_tx[j] != 0 && !IN_PROGRESS(prepared_tx[j]) ->
#if RELAYS > 1
#ifdef BREAK_PREPARED_FOR_ALL
				late = late | (prepared_runs[j] & UP_TO(read_up_to));
#else
				push(prepared_runs[j]);
#endif
#else
				late = late | (prepared_runs[j] & UP_TO(read_up_to));
				for (i : 1 .. POS)
				{
					if
					:: HAS(prepared_runs[j], i) && i > pushed_up_to -> pushed_up_to = i
					:: else
					fi
				}
				i = 0;
#endif
				prepared_tx[j] = 0;
				prepared_runs[j] = 0
			:: else
			fi
		}
		j = 0
	}
}
#else
#define collect_prepared() skip
#endif

/* feed.c, outbox_feed_drain(); store_read.c, note_pushed(). */
inline drain()
{
	d_step
	{
		set_of = ring[me] | overflow[me];
		ring[me] = 0;
		ring_entries[me] = 0;
		overflow[me] = 0;
		late = late | (set_of & UP_TO(read_up_to));
		for (i : 1 .. POS)
		{
			if
			:: HAS(set_of, i) && i > pushed_up_to -> pushed_up_to = i
			:: else
			fi
		}
		i = 0;
		set_of = 0
	}
}

inline take_snapshot()
{
	d_step
	{
		snapshot = 0;
		for (i : 1 .. POS)
		{
			if
			:: i <= seq && state[row_tx[i]] == COMMITTED -> snapshot = snapshot | BIT(i)
			:: else
			fi
		}
		i = 0
	}
}

/* The event leaves for the schedule, which keeps the order in which it came. */
inline hand_on(x)
{
	only_committed_is_handed_on = state[row_tx[x]] == COMMITTED;
	assert(only_committed_is_handed_on);
	only_committed_is_handed_on = 0;
	predecessors_are_handed_on = true;
	for (k : 1 .. POS)
	{
		if
		:: k < (x) && AGGREGATE(k) == AGGREGATE(x) && state[row_tx[k]] == COMMITTED ->
			predecessors_are_handed_on = predecessors_are_handed_on && HAS(seen, k)
		:: else
		fi
	}
	k = 0;
	assert(predecessors_are_handed_on || !MINE(x));
	predecessors_are_handed_on = 0;
	if
	:: MINE(x) -> handed = handed | BIT(x)
	:: else -> settled = settled | BIT(x)
	fi
}

/* store_read.c, take_predecessors(): rows of x's aggregate before it, back to one that is seen. */
inline take_predecessors(x)
{
	low = (x) - 1;
	do
	:: low > 0 && (AGGREGATE(low) != AGGREGATE(x) || (HAS(snapshot, low) && !HAS(seen, low)) || !HAS(snapshot, low)) ->
		low--
	:: else -> break
	od;
	for (j : 1 .. POS)
	{
		if
		:: j > low && j < (x) && AGGREGATE(j) == AGGREGATE(x) && HAS(snapshot, j) ->
			seen = seen | BIT(j);
			hand_on(j)
		:: else
		fi
	}
	j = 0;
	low = 0
}

/* store_read.c, take_row() */
inline take_row(x)
{
	if
	:: !HAS(seen, x) ->
		seen = seen | BIT(x);
#ifndef BREAK_FOLLOWS
		if
		:: row_follows[x] != 0 && !HAS(seen, row_follows[x]) -> take_predecessors(x)
		:: else
		fi;
#endif
		hand_on(x)
	:: else
	fi
}

/* Step 5, under the snapshot: late ranges first, then the pass; store_read.c, read_late(), read_pass(). */
inline read_rows()
{
	d_step
	{
		high = 1;
		do
		:: high <= POS && late != 0 ->
			if
			:: HAS(late, high) && HAS(snapshot, high) && budget == 0 -> break
			:: HAS(late, high) && HAS(snapshot, high) && budget > 0 ->
				take_row(high);
				budget--
			:: else
			fi;
			late = late & ~BIT(high);
			high++
		:: else -> break
		od;
		high = read_up_to + 1;
		do
		:: late == 0 && high <= end ->
			if
			:: HAS(snapshot, high) && budget == 0 -> break
			:: HAS(snapshot, high) && budget > 0 ->
				take_row(high);
				budget--
			:: else
			fi;
			read_up_to = high;
			high++
		:: else -> break
		od;
		high = (end > pushed_up_to -> end : pushed_up_to);
		more = late != 0 || read_up_to < high;
		high = 0;
		end = 0;
		budget = 0;
		snapshot = 0;
#ifdef SETTLE_AT_ONCE
		published = published | handed;
		ledger = ledger | handed;
		settled = settled | handed;
		handed = 0
#endif
	}
}

inline choose_budget()
{
#ifdef PARTIAL
	if
	:: budget = POS
	:: budget = 1
	fi
#else
	budget = POS
#endif
}

/* store_read.c, outbox_store_read(). One step from the snapshot on: what is read is fixed then. */
inline read()
{
#ifdef BREAK_END_FIRST
	collect_prepared();
	drain();
	take_snapshot();
	note_end();
	atomic
	{
#else
#ifdef BREAK_PREPARED_BEFORE_SNAPSHOT
	note_end();
	drain();
	take_snapshot();
	collect_prepared();
	atomic
	{
#else
#ifdef BREAK_RING_BEFORE_SNAPSHOT
	note_end();
	collect_prepared();
	take_snapshot();
	drain();
	atomic
	{
#else
	note_end();
#ifdef BREAK_PREPARED_BEFORE_RING
	drain();
	collect_prepared();
#else
	collect_prepared();
	drain();
#endif
	atomic
	{
		take_snapshot();
#endif
#endif
#endif
		choose_budget();
		read_rows();
	}
#if CRASHES > 0 && !defined(BREAK_FLUSH)
	d_step { flush() }			/* make_durable() */
#endif
}

/* The looks of compute_watermark(), in the direction in which a transaction moves. */
#ifndef BREAK_BOUNDS
inline look_at_bounds()
{
	d_step
	{
		for (i : 1 .. TX)
		{
			if
			:: bound[i] != 0 && bound[i] < open -> open = bound[i]
			:: else
			fi
		}
		i = 0
	}
}
#else
#define look_at_bounds() skip
#endif

inline lower_open(set)
{
	for (i : 1 .. POS)
	{
		if
		:: HAS(set, i) && i < open -> open = i
		:: else
		fi
	}
	i = 0
}

#ifndef BREAK_PREPARED_IN_WATERMARK
inline look_at_prepared()
{
	d_step
	{
		for (j : 0 .. PREPARED_ENTRIES - 1)
		{
			lower_open(prepared_runs[j])
		}
		j = 0
	}
}
#else
#define look_at_prepared() skip
#endif

#ifndef BREAK_RING_IN_WATERMARK
inline look_at_ring()
{
	d_step
	{
		set_of = ring[me] | overflow[me];
		lower_open(set_of);
		set_of = 0
	}
}
#else
#define look_at_ring() skip
#endif

/* store_settle.c, compute_watermark() and outbox_store_advance_watermark() */
inline write_watermark()
{
	end = max_assigned;
	open = POS + 1;
#ifdef BREAK_DIRECTION
	look_at_ring();
	look_at_prepared();
	look_at_bounds();
#else
	look_at_bounds();
	look_at_prepared();
	look_at_ring();
#endif
	d_step
	{
#ifndef BREAK_LATE_IN_WATERMARK
		lower_open(late);
#endif
		set_of = seen & ~settled;
		lower_open(set_of);
		set_of = 0;
		end = (end > read_up_to -> read_up_to : end);
		end = (end > open - 1 -> open - 1 : end);
		own_watermark[me] = (end > own_watermark[me] -> end : own_watermark[me]);
		end = own_watermark[0];
#if RELAYS > 1
		end = (own_watermark[1] < end -> own_watermark[1] : end);
#endif
		if
		:: end > watermark ->
			check_watermark(end);
			watermark = end
		:: else
		fi;
		end = 0;
		open = 0
	}
}

/* store_load.c */
inline load()
{
	d_step
	{
		read_up_to = watermark;
		own_watermark[me] = watermark;
		settled = ledger | UP_TO(watermark);
		seen = settled;
		late = 0;
		handed = 0;
		acked = 0;
		pushed_up_to = 0;
		snapshot = 0;
		end = 0;
		open = 0;
		budget = 0;
		more = true
	}
}

/* An entry that ended, or numbers drawn without a push, come to light by the timer: relay.c, timer_work(). */
#define ENDED(n) (prepared_tx[n] != 0 && !IN_PROGRESS(prepared_tx[n]))
#if PREPARED_ENTRIES == 1
#define ANY_PREPARED_ENDED ENDED(0)
#else
#define ANY_PREPARED_ENDED (ENDED(0) || ENDED(1))
#endif
#define SHOULD_READ (more || ring[me] != 0 || overflow[me] != 0 || max_assigned > read_up_to || ANY_PREPARED_ENDED)

proctype Relay(byte me)
{
	byte read_up_to, end, late, pushed_up_to, snapshot, budget, open;
	byte seen, settled, handed, acked;
	bool more;

again:
	skip;
	load();
	{
		do
		:: SHOULD_READ -> read()
#ifndef SETTLE_AT_ONCE
		:: d_step
			{
				handed != 0 ->
				published = published | handed;
				acked = acked | handed;
				handed = 0
			}
		:: d_step
			{
				acked != 0 ->
				ledger = ledger | acked;
				settled = settled | acked;
				acked = 0
			}
#endif
		:: d_step { watermarks > 0 && own_watermark[me] < read_up_to -> watermarks-- };
			write_watermark()
		:: finished == ALL_TX && !SHOULD_READ && handed == 0 && acked == 0 ->
			write_watermark();
			if
			:: SHOULD_READ			/* not the end yet: somebody has brought something */
			:: else -> break
			fi
		od;
		atomic
		{
			nothing_is_lost = true;
			for (i : 1 .. POS)
			{
				if
				:: i <= seq && MINE(i) && state[row_tx[i]] == COMMITTED ->
					nothing_is_lost = nothing_is_lost && HAS(ledger, i) && HAS(published, i)
				:: else
				fi
			}
			i = 0;
			assert(nothing_is_lost);
			nothing_is_lost = 0;
			watermark_arrives = own_watermark[me] == seq;
			assert(watermark_arrives);
			watermark_arrives = 0;
			done_relays = done_relays | BIT(me)
		}
	} unless
	{
		atomic
		{
			HAS(killed_relays, me) ->
			killed_relays = killed_relays & ~BIT(me)
		};
		goto again
	}
}

/* ----------------------------------------------------------------- faults */

/* Shared memory is gone, and of the tables what wasn't flushed. */
inline crash()
{
	committed = flushed_committed;
	ledger = flushed_ledger;
	watermark = flushed_watermark;
	seq = flushed_seq;
	max_assigned = seq;
	for (i : 0 .. 1)
	{
		holder[i] = 0;
		key_last[i] = 0
	}
	for (i : 0 .. PREPARED_ENTRIES - 1)
	{
		prepared_tx[i] = 0;
		prepared_runs[i] = 0
	}
	for (i : 0 .. RELAYS - 1)
	{
		ring[i] = 0;
		ring_entries[i] = 0;
		overflow[i] = 0;
		killed_relays = killed_relays | BIT(i)
	}
	for (i : 1 .. TX)
	{
		bound[i] = 0;
		if
		:: state[i] == ACTIVE || (state[i] == COMMITTED && !HAS(committed, i)) ->
			state[i] = LOST
		:: else
		fi;
		if
		:: state[i] != NEW && state[i] != PREPARED ->
			xact_locks = xact_locks & ~BIT(i);
			killed_tx = (HAS(finished, i) -> killed_tx : killed_tx | BIT(i))
		:: else
		fi
	}
	i = 0;
	/* database.c, prepare_slot(): whoever comes first, the others wait. */
	for (j : 1 .. POS)
	{
		if
		:: j <= seq && state[row_tx[j]] == PREPARED ->
#ifndef BREAK_RESTORE
			k = 0;
			do
			:: prepared_tx[k] != 0 && prepared_tx[k] != row_tx[j] -> k++
			:: else -> break
			od;
			prepared_tx[k] = row_tx[j];
			prepared_runs[k] = prepared_runs[k] | BIT(j);
			holder[AGGREGATE(j)] = row_tx[j];
			k = 0
#else
			skip
#endif
		:: else
		fi
	}
	/* The properties that a crash can break. */
	published_survives = true;
	for (j : 1 .. POS)
	{
		if
		:: HAS(published, j) && row_tx[j] != 0 ->
			published_survives = published_survives && state[row_tx[j]] == COMMITTED
		:: else
		fi
	}
	assert(published_survives);
	published_survives = 0;
	j = 0;
	check_watermark(watermark)
}

proctype Faults()
{
end_of_faults:
	do
	:: d_step
		{
			flushes > 0 && crashes > 0 && done_relays == 0 ->
			flushes--;
			flush()
		}
	:: d_step
		{
			crashes > 0 && done_relays == 0 ->
			crashes--;
			crash()
		}
	:: d_step
		{
			kills > 0 && done_relays == 0 && killed_relays == 0 ->
			kills--;
			killed_relays = killed_relays | BIT(0)
		}
	od
}

init
{
	byte n = 1;

	atomic
	{
		do
		:: n <= TX ->
			run Tx(n);
			n++
		:: else -> break
		od;
		n = 0;
		do
		:: n < RELAYS ->
			run Relay(n);
			n++
		:: else -> break
		od;
#if CRASHES + KILLS > 0
		run Faults();
#endif
		n = 0
	}
}
