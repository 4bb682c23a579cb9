/*
 * delivery.pml
 *	  From committed events to the stream: sending, acknowledgements, verdicts,
 *	  several relays, their leases and epochs, the watermark of all.
 *
 * The events are committed and readable from the start: feed.pml is about how
 * they get so far. Two relay processes join the members' table, claim slots,
 * load what is recorded, send and settle; a network and a broker lose, delay,
 * repeat and refuse; processes freeze, are terminated, the server crashes; an
 * operator redrives or discards. docs/protocol.md explains it.
 *
 * Sets are bit masks. A lease is not counted in time: whoever is frozen may be
 * found expired. Looking at one's epoch and writing to the socket is one step.
 *
 * Sizes:  EVENTS, SLOTS (1, or 2: event 2 then belongs to the second one),
 *         PLACES in the members' table.
 * Faults: FAULTS of any kind, REDRIVES by the operator; NO_CRASH, NO_FREEZE and
 *         NO_LOSS leave a kind out. ONE_RELAY leaves out the second process.
 * POLICY: 1 skip, 2 block, 3 park.
 * Each name in an #ifdef that begins with BREAK_ takes one rule away.
 */

#ifndef EVENTS
#define EVENTS 2
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef PLACES
#define PLACES 2
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef REDRIVES
#define REDRIVES 1
#endif
#ifndef POLICY
#define POLICY 1
#endif

#define SKIP (POLICY == 1)
#define BLOCK (POLICY == 2)
#define PARK (POLICY == 3)

#define BIT(n) (1 << (n))
#define HAS(set, n) (((set) >> (n)) & 1)
#define ALL_EVENTS ((2 << EVENTS) - 2)
#define SLOT(p) (SLOTS == 2 && (p) == 2 -> 1 : 0)

/* Tables; those that settles of acknowledgements change may lag on disk. */
byte ledger, flushed_ledger;
byte watermark, flushed_watermark;
byte failed, parked, discarded, redriven;
#define TERMINAL (failed | parked | discarded)

/* Shared memory: the members' table, the slots, the fence locks. */
byte epoch_of[PLACES];			/* 0: free. A process has one epoch at a time, so its number + 1 tells as much */
byte own_watermark[PLACES];
byte fence[PLACES];				/* processes that hold the lock of a place in share mode */
byte owner[SLOTS];				/* place + 1, or 0 */

/* The broker: messages on their way from each relay, replies on their way back, the stream. */
byte unsent[2];					/* in the client library's buffer */
byte net[3];					/* the third: copies whose answer nobody waits for any more */
byte acks[2];
byte refusals[2];
byte stored;
byte window;					/* ids that the stream remembers */
byte refuses;					/* events that it refuses for what they are */

/* Faults. */
byte faults = FAULTS;
byte redrives = REDRIVES;
byte frozen;
byte killed;
bit started;					/* relays are alike: the first one may as well start first */
byte reload;					/* relays that are told to load again */

/* The properties. They are assigned where they are asserted, so they take no state. */
hidden byte order_is_kept;
hidden byte sent_is_pending;
hidden byte published_is_stored;
hidden byte failed_is_not_stored;
hidden byte recorded_by_owner;
hidden byte watermark_is_true;
hidden byte nothing_is_lost;
hidden byte watermark_arrives;
hidden byte i, low;

#define LIVE (PLACES == 2 -> (epoch_of[0] != 0) + (epoch_of[PLACES - 1] != 0) : 1)
#define OWNS(place, s) (owner[s] == (place) + 1)
#if SLOTS == 2
#define OWNED(place) (OWNS(place, 0) + OWNS(place, 1))
#define ALL_OWNED (owner[0] != 0 && owner[1] != 0)
#define LOWEST (own_watermark[owner[0] - 1] < own_watermark[owner[1] - 1] -> own_watermark[owner[0] - 1] : own_watermark[owner[1] - 1])
#else
#define OWNED(place) OWNS(place, 0)
#define ALL_OWNED (owner[0] != 0)
#define LOWEST own_watermark[owner[0] - 1]
#endif

inline flush()
{
	flushed_ledger = ledger;
	flushed_watermark = watermark
}

inline check_watermark(w)
{
	watermark_is_true = true;
	for (i : 1 .. EVENTS)
	{
		watermark_is_true = watermark_is_true && (i > (w) || HAS(ledger | TERMINAL | redriven, i))
	}
	i = 0;
	assert(watermark_is_true);
	watermark_is_true = 0
}

inline revoke(place)
{
	for (i : 0 .. SLOTS - 1)
	{
		owner[i] = (OWNS(place, i) -> 0 : owner[i])
	}
	i = 0;
	epoch_of[place] = 0;
	own_watermark[place] = 0
}

/* ------------------------------------------------------------------ relay */

#ifdef BREAK_EPOCH_COMPARED
#define VALID (epoch_of[place] != 0)
#else
#define VALID (epoch_of[place] == me + 1)
#endif
#define DRAINED (flight == 0 && acked == 0 && refused == 0 && unsent[me] == 0)
#define QUIET(p) (!HAS(net[me] | unsent[me] | acks[me] | refusals[me], p))

#ifdef BREAK_STALE_SEND
#define MAY_SEND true
#else
#define MAY_SEND VALID
#endif

/* What an event must not wait for: schedule.c lets the next head go. */
#ifdef BREAK_ACK_BEFORE_SUCCESSOR
#define PASSED (done | acked | flight)
#define FREE(p) true
#else
#define FREE(p) (SLOT(p) == 0 -> (flight & in_slot_0) == 0 : (flight & ~in_slot_0) == 0)
#ifdef BREAK_VERDICT_BEFORE_SUCCESSOR
#define PASSED (done | acked | refused)
#else
#ifdef BREAK_HOLD_WHILE_RESENDING
#define PASSED (done | acked | unanswered)
#else
#define PASSED (done | acked)
#endif
#endif
#endif
#if SLOTS == 2
#define in_slot_0 (ALL_EVENTS & ~BIT(2))
#else
#define in_slot_0 ALL_EVENTS
#endif
#define BEFORE(p) ((BIT(p) - 1) & (SLOT(p) == 0 -> in_slot_0 : ALL_EVENTS & ~in_slot_0))
#define OF_MINE(p) HAS(mine, SLOT(p))
#define IS_NEW(p) (OF_MINE(p) && !HAS(done | acked | refused | flight, p))
#define IS_HEAD(p) (IS_NEW(p) && FREE(p) && (BEFORE(p) & ~PASSED) == 0 && (BEFORE(p) & held) == 0)
#define TO_PARK(p) (PARK && IS_NEW(p) && (BEFORE(p) & held) != 0 && (BEFORE(p) & ~done) == 0)

/* store_load.c: what is recorded decides what is pending. */
inline load()
{
	d_step
	{
		done = ledger | TERMINAL;
		for (i : 1 .. EVENTS)
		{
#ifdef BREAK_LOAD_REDRIVEN
			done = (i <= watermark -> done | BIT(i) : done)
#else
			done = (i <= watermark && !HAS(redriven, i) -> done | BIT(i) : done)
#endif
		}
		i = 0;
		held = (SKIP -> 0 : failed | parked);
		reload = reload & ~BIT(me);
		dirty = true
	}
}

#ifdef BREAK_GAIN_LOWERS_WATERMARK
#define lower_own_watermark() skip
#else
#define lower_own_watermark() own_watermark[place] = watermark
#endif

/* Under slots_lock, like every change of the members' table; with the caller's epoch. */
#ifdef BREAK_CLAIM_CHECKS_EPOCH
#define MAY_CLAIM true
#else
#define MAY_CLAIM VALID
#endif

inline claim()
{
	for (i : 0 .. SLOTS - 1)
	{
		if
		:: MAY_CLAIM && owner[i] == 0 && OWNED(place) < (LIVE == 2 -> 1 : SLOTS) ->
			owner[i] = place + 1;
			mine = mine | BIT(i)
		:: else
		fi
	}
	i = 0;
	if
	:: MAY_CLAIM -> lower_own_watermark()
	:: else
	fi
}

/* The settle transaction that records a verdict; store_settle.c. The fence is held to its end. */
inline record(verdict, events)
{
#ifndef BREAK_FENCE
#ifndef BREAK_FENCE_LOCK
	fence[place] = fence[place] | BIT(me);
#endif
	if
	:: VALID
	:: !VALID -> goto leave
	fi;
#endif
	atomic					/* not a d_step: one may not jump into it */
	{
		recorded_by_owner = epoch_of[place] == me + 1;
		for (i : 1 .. EVENTS)
		{
			recorded_by_owner = recorded_by_owner && (!HAS(events, i) || OWNS(place, SLOT(i)))
		}
		i = 0;
		assert(recorded_by_owner);
		recorded_by_owner = 0;
		failed_is_not_stored = (stored & (events)) == 0;
		assert(failed_is_not_stored);
		failed_is_not_stored = 0;
		verdict = verdict | (events);
		redriven = redriven & ~(events);
#if defined(BREAK_VERDICT_FLUSHED) || defined(BREAK_FLUSHED_BEFORE_VISIBLE)
		unflushed_verdicts = unflushed_verdicts | (events);
#else
		flush();
#endif
#ifdef BREAK_FLUSHED_BEFORE_VISIBLE
		fence[place] = fence[place] & ~BIT(me)
	}
	atomic					/* XLogFlush() after the commit */
	{
		flush();
		unflushed_verdicts = 0;
#endif
		done = done | (events);
		held = (SKIP -> held : held | (events));
		dirty = true;
		refused = 0;
		fence[place] = fence[place] & ~BIT(me)
	}
}

#if defined(BREAK_VERDICT_FLUSHED) || defined(BREAK_FLUSHED_BEFORE_VISIBLE)
byte unflushed_verdicts;
#endif

#ifdef BREAK_WATERMARK_ON_RECORD
#define SETTLED (done | acked | refused)
#else
#define SETTLED done
#endif

/* This member's own: all of its slots' events at or below are terminal and recorded. */
inline compute_own_watermark()
{
	low = watermark;
	do
	:: low < EVENTS && (HAS(SETTLED, low + 1) || !OF_MINE(low + 1)) -> low++
	:: else -> break
	od;
	own_watermark[place] = low;
	low = 0
}

#ifdef BREAK_ALL_SLOTS_OWNED
#define MAY_WRITE (OWNED(place) > 0)
#define COMMON (ALL_OWNED -> LOWEST : own_watermark[place])
#else
#define MAY_WRITE ALL_OWNED
#define COMMON LOWEST
#endif

#define ACT_ON(p) \
		:: d_step { IS_HEAD(p) && MAY_SEND -> flight = flight | BIT(p); unsent[me] = unsent[me] | BIT(p) } \
		:: d_step { HAS(acks[me], p) && HAS(flight, p) -> \
				end_attempt(BIT(p)); flight = flight & ~BIT(p); acked = acked | BIT(p) } \
		:: d_step { HAS(refusals[me], p) && HAS(flight, p) -> \
				end_attempt(BIT(p)); flight = flight & ~BIT(p); refused = refused | BIT(p) } \
		:: d_step { HAS(flight, p) && (QUIET(p) || faults > 0) -> \
				faults = (QUIET(p) -> faults : faults - 1); flight = flight & ~BIT(p); end_attempt(BIT(p)); \
				no_answer(p) } \
		:: TO_PARK(p) -> record(parked, BIT(p))

#ifdef BREAK_UNKNOWN_IS_NO_VERDICT
#define no_answer(p) refused = refused | BIT(p)
#else
#ifdef BREAK_HOLD_WHILE_RESENDING
byte unanswered;
#define no_answer(p) unanswered = unanswered | BIT(p)
#else
#define no_answer(p) skip
#endif
#endif

/* Whatever comes of these attempts, nobody waits for it: replies carry the attempt's own subject. */
inline end_attempt(events)
{
	net[2] = net[2] | (net[me] & (events));
	net[me] = net[me] & ~(events);
	unsent[me] = unsent[me] & ~(events);
	acks[me] = acks[me] & ~(events);
	refusals[me] = refusals[me] & ~(events)
}

inline look_at_bytes()
{
	sent_is_pending = (unsent[me] & TERMINAL) == 0;
	assert(sent_is_pending);
	sent_is_pending = 0
}

proctype Relay(byte me) provided (!HAS(frozen, _pid - 1))
{
	byte place, mine, flight, acked, refused, done, held;
	bool dirty;

again:
	/* outbox_slots_join() */
end_without_place:
	atomic
	{
		(epoch_of[0] == 0 || epoch_of[PLACES - 1] == 0) && started >= me ->
		started = 1;
		place = (epoch_of[0] == 0 -> 0 : PLACES - 1);
		epoch_of[place] = me + 1
	};
	{
end_of_work:
		do
		/* Ownership changes only when nothing is outstanding, and then all is loaded again. */
		:: VALID && DRAINED && OWNED(place) < (LIVE == 2 -> 1 : SLOTS) && !ALL_OWNED ->
#ifdef BREAK_CLAIM_BEFORE_LOAD
			load();
#endif
			d_step { claim() };
#ifndef BREAK_CLAIM_BEFORE_LOAD
			load()
#endif
#if SLOTS == 2
#ifdef BREAK_DRAIN_BEFORE_RELEASE
		:: d_step { VALID && OWNED(place) == 2 && LIVE == 2 ->
#else
		:: d_step { VALID && DRAINED && OWNED(place) == 2 && LIVE == 2 ->
#endif
				owner[0] = 0; mine = mine & ~BIT(0); dirty = true }
#endif
		:: VALID && DRAINED && HAS(reload, me) -> load()
		ACT_ON(1)
#if EVENTS >= 2
		ACT_ON(2)
#endif
#if EVENTS >= 3
		ACT_ON(3)
#endif
		/* The library's buffer is written to the socket. */
		:: d_step { unsent[me] != 0 && MAY_SEND ->
				look_at_bytes(); net[me] = net[me] | unsent[me]; unsent[me] = 0 }
		/* The settle of acknowledgements: facts, no fence, asynchronous. */
		:: d_step { acked != 0 ->
				published_is_stored = (acked & ~stored) == 0;
				assert(published_is_stored);
				published_is_stored = 0;
				ledger = ledger | acked; done = done | acked; acked = 0; dirty = true }
		:: refused != 0 -> record(failed, refused)
		:: d_step { dirty && VALID -> compute_own_watermark(); dirty = false }
		:: VALID && !dirty && MAY_WRITE && COMMON > watermark ->
			d_step
			{
				if
				:: VALID && MAY_WRITE && COMMON > watermark ->
					low = COMMON;
					check_watermark(low);
					watermark = low;
					low = 0
				:: else
				fi
			}
		:: !VALID -> goto leave
		od;
leave:
#ifdef BREAK_STALE_UNSENT
		atomic
		{
			look_at_bytes();
			net[me] = net[me] | unsent[me]
		}
#else
		skip
#endif
	} unless { HAS(killed, me) };
	/* The process ends, with it the connection, and is started again. */
	atomic
	{
		if
		:: VALID -> revoke(place)
		:: else
		fi;
		fence[place] = fence[place] & ~BIT(me);
		end_attempt(ALL_EVENTS);
		killed = killed & ~BIT(me);
		place = 0;
		mine = 0;
		flight = 0;
		acked = 0;
		refused = 0;
		done = 0;
		held = 0;
		dirty = 0
	};
	goto again
}

/* ----------------------------------------------------- network and broker */

/* A copy of event p comes to the broker. */
inline arrive(r, p, answer)
{
	if
	:: HAS(window, p) ->
		acks[r] = acks[r] | (answer -> BIT(p) : 0)
	:: !HAS(window, p) && HAS(refuses, p) ->
		refusals[r] = refusals[r] | (answer -> BIT(p) : 0)
	:: else ->
		if
		:: !HAS(stored, p) ->
			order_is_kept = true;
			for (i : 1 .. EVENTS)
			{
				if
				:: i < (p) && SLOT(i) == SLOT(p) ->
					order_is_kept = order_is_kept &&
						(HAS(stored | discarded, i) || (SKIP && HAS(failed | redriven, i)))
				:: i > (p) && SLOT(i) == SLOT(p) ->
					order_is_kept = order_is_kept && (!HAS(stored, i) || (SKIP && HAS(redriven, p)))
				:: else
				fi
			}
			i = 0;
			assert(order_is_kept);
			order_is_kept = 0
		:: else
		fi;
		stored = stored | BIT(p);
		window = window | BIT(p);
		acks[r] = acks[r] | (answer -> BIT(p) : 0)
	fi
}

#ifdef NO_LOSS
#define COPY(r, p) \
	:: d_step { HAS(net[r], p) -> net[r] = net[r] & ~BIT(p); arrive(r, p, true) }
#else
/* It arrives; it gets lost; its answer gets lost; it arrives and comes again. */
#define COPY(r, p) \
	:: d_step { HAS(net[r], p) -> net[r] = net[r] & ~BIT(p); arrive(r, p, true) } \
	:: d_step { HAS(net[r], p) && faults > 0 -> faults--; net[r] = net[r] & ~BIT(p) } \
	:: d_step { HAS(net[r], p) && faults > 0 -> faults--; net[r] = net[r] & ~BIT(p); arrive(r, p, false) } \
	:: d_step { HAS(net[r], p) && faults > 0 -> faults--; arrive(r, p, true) }
#endif

#define GHOST(p) \
	:: d_step { HAS(net[2], p) -> net[2] = net[2] & ~BIT(p); arrive(0, p, false) } \
	:: d_step { HAS(net[2], p) -> net[2] = net[2] & ~BIT(p) }

proctype Broker()
{
end_of_broker:
	do
	COPY(0, 1)
	COPY(1, 1)
	GHOST(1)
#if EVENTS >= 2
	COPY(0, 2)
	COPY(1, 2)
	GHOST(2)
#endif
#if EVENTS >= 3
	COPY(0, 3)
	COPY(1, 3)
	GHOST(3)
#endif
	od
}

/* ------------------------------------------------------ faults, operator */

#ifdef ONE_RELAY
#define ALL_RELAYS 1
#else
#define ALL_RELAYS 3
#endif
#define ON_ITS_WAY (net[0] | net[1] | net[2] | unsent[0] | unsent[1])

#ifdef BREAK_REVOKE_LOOKS_AT_FENCE
#define MAY_REVOKE(place) true
#else
#define MAY_REVOKE(place) (fence[place] == 0)
#endif
#define EXPIRED(place) (epoch_of[place] != 0 && HAS(frozen, epoch_of[place] - 1))

inline crash()
{
	ledger = flushed_ledger;
	watermark = flushed_watermark;
#if defined(BREAK_VERDICT_FLUSHED) || defined(BREAK_FLUSHED_BEFORE_VISIBLE)
	failed = failed & ~unflushed_verdicts;
	parked = parked & ~unflushed_verdicts;
	unflushed_verdicts = 0;
#endif
	for (low : 0 .. PLACES - 1)
	{
		revoke(low);
		fence[low] = 0
	}
	low = 0;
	frozen = 0;
	killed = ALL_RELAYS;
	reload = 0
}

proctype World()
{
end_of_world:
	do
#ifndef NO_FREEZE
	:: d_step { faults > 0 && frozen == 0 -> faults--; frozen = 1 }
	:: d_step { faults > 0 && frozen == 0 -> faults--; frozen = 2 }
	:: frozen != 0 -> frozen = 0
	/* The launcher or a peer finds the lease expired. It doesn't wait for the fence. */
	:: d_step { EXPIRED(0) && MAY_REVOKE(0) -> revoke(0) }
#if PLACES > 1
	:: d_step { EXPIRED(1) && MAY_REVOKE(1) -> revoke(1) }
#endif
#endif
#ifndef NO_CRASH
	:: d_step { faults > 0 && killed == 0 -> faults--; crash() }
	:: d_step { faults > 0 && killed == 0 -> faults--; flush(); crash() }
	:: d_step { faults > 0 && killed == 0 -> faults--; flushed_ledger = ledger; crash() }
	/* pg_terminate_backend() */
	:: d_step { faults > 0 && killed == 0 && frozen == 0 -> faults--; killed = 1 }
#ifndef ONE_RELAY
	:: d_step { faults > 0 && killed == 0 && frozen == 0 -> faults--; killed = 2 }
#endif
#endif
#ifndef NO_LOSS
	/* The stream's duplicate window has passed. */
	:: d_step { faults > 0 && window != 0 -> faults--; window = 0 }
#endif
	/* The operator has removed the cause, and redrives; no old copy is under way. */
	:: d_step { redrives > 0 && failed != 0 && (ON_ITS_WAY & (failed | parked)) == 0 ->
			redrives--;
			refuses = 0;
			redriven = redriven | failed | parked;
			failed = 0;
			parked = 0;
			flush();
			reload = ALL_RELAYS }
	/* Or lifts the cause only, whatever is on its way, and discards. */
	:: d_step { redrives > 0 && failed != 0 && (ON_ITS_WAY & failed) == 0 ->
			redrives--;
			refuses = 0;
			discarded = discarded | failed;
			failed = 0;
			flush();
			reload = ALL_RELAYS }
	:: d_step { faults > 0 || redrives > 0 -> faults = 0; redrives = 0 }
	od
}

/* Nothing more can happen: everything must be published, or shown as failed. */
proctype Monitor()
{
	timeout ->
	d_step
	{
		nothing_is_lost = true;
		for (i : 1 .. EVENTS)
		{
			nothing_is_lost = nothing_is_lost &&
				((HAS(ledger, i) && HAS(stored, i)) || HAS(TERMINAL, i) ||
				 (BLOCK && (failed & (BIT(i) - 1)) != 0))
		}
		i = 0;
		assert(nothing_is_lost);
		watermark_arrives = watermark == EVENTS || BLOCK && failed != 0;
		assert(watermark_arrives);
		nothing_is_lost = 0;
		watermark_arrives = 0
	}
}

init
{
	atomic
	{
		if
		:: refuses = 0
		:: refuses = BIT(1)
		fi;
		run Relay(0);
#ifndef ONE_RELAY
		run Relay(1);
#endif
		run Broker();
		run World();
		run Monitor()
	}
}
