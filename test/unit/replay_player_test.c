/*
 * replay_player_test.c
 *	  src/replay_player.c alone, with a broker that answers what the test says:
 *	  window, groups and pauses, rate, refusals, order, repetitions by hand; then
 *	  whole replays at random against what must hold.
 */
#include <stdlib.h>
#include <string.h>

#include "replay_player.h"
#include "unit.h"

#define MS INT64_C(1000)
#define SECOND INT64_C(1000000)
#define HOUR (3600 * SECOND)
#define DAY (24 * HOUR)

/* As replay.c sets it beside live traffic; and what the player makes of the smallest one. */
#define LIVE_WINDOW 16
#define SMALLEST_WINDOW 8
#define FIRST_WINDOW 64

/* ---------- the broker ---------- */

#define MAX_MESSAGES 100000

typedef struct Sent
{
	int64_t		position;
	void	   *cookie;
	bool		answered;
} Sent;

/* What was published, in order, and the answers to come. */
struct Broker
{
	Sent		sent[MAX_MESSAGES];
	int			count;
	int			first;			/* before it all are answered */
	BrokerOutcome answers[2 * OUTBOX_PLAYER_WINDOW];
	int			answer_count;
	BrokerPublishResult result;	/* of the next publish */
};

static struct Broker broker;

BrokerPublishResult
broker_publish(Broker *to, const BrokerMessage *message, void *cookie, int *error_code, char *error_text)
{
	if (to->result == BROKER_PUBLISH_REFUSED)
	{
		*error_code = 0;
		snprintf(error_text, BROKER_TEXT_SIZE, "too large");
	}
	if (to->result == BROKER_PUBLISH_OK)
		to->sent[to->count++] = (Sent) {.position = message->data_len, .cookie = cookie};
	return to->result;
}

int
broker_poll(Broker *from, BrokerOutcome *outcomes, int max)
{
	int			count = from->answer_count < max ? from->answer_count : max;

	memcpy(outcomes, from->answers, (size_t) count * sizeof(BrokerOutcome));
	from->answer_count -= count;
	memmove(from->answers, from->answers + count, (size_t) from->answer_count * sizeof(BrokerOutcome));
	return count;
}

/* ---------- a replay by hand ---------- */

static OutboxPlayer player;
static int64_t next_position;
static int64_t wait_us; /* the last answer of may_send */
static int aggregates; /* so many take turns */

static void
begin(int64_t rate, int max_window)
{
	broker.count = broker.first = broker.answer_count = 0;
	broker.result = BROKER_PUBLISH_OK;
	outbox_player_begin(&player, &broker, rate, max_window);
	next_position = 1;
	aggregates = 1 << 20;
}

static uint64_t
aggregate_of(int64_t position)
{
	return (uint64_t) (position % aggregates);
}

/* Sends one event if it may be sent. */
static bool
send_one(int64_t now, uint64_t aggregate)
{
	BrokerMessage message = {.data_len = (int) next_position};

	if (!outbox_player_may_send(&player, aggregate, now, &wait_us) ||
		!outbox_player_send(&player, &message, next_position, 1000 + next_position, aggregate))
		return false;
	next_position++;
	return true;
}

/* As many as may be sent now. */
static int
send_all(int64_t now)
{
	int			count = 0;

	while (send_one(now, aggregate_of(next_position)))
		count++;
	return count;
}

/* The answer to a message by its number in the order of publishing. */
static void
answer(int number, BrokerOutcomeKind kind, int round_trip_us, bool duplicate)
{
	BrokerOutcome *outcome = &broker.answers[broker.answer_count++];

	*outcome = (BrokerOutcome) {.cookie = broker.sent[number].cookie, .kind = kind, .duplicate = duplicate, .round_trip_us = round_trip_us};
	if (kind != BROKER_ACKED)
	{
		outcome->code = kind == BROKER_REFUSED ? 10077 : 0;
		snprintf(outcome->text, sizeof(outcome->text), "message %d", number);
	}
	broker.sent[number].answered = true;
	while (broker.first < broker.count && broker.sent[broker.first].answered)
		broker.first++;
}

/* Acks the first so many that are unanswered. */
static void
ack(int count, int round_trip_us)
{
	for (int i = broker.first; i < broker.count && count > 0; i++)
	{
		if (broker.sent[i].answered)
			continue;
		answer(i, BROKER_ACKED, round_trip_us, false);
		count--;
	}
}

/* All that is in flight is acked, and as much as possible sent again; returns how much that was. */
static int
turn(int64_t now, int round_trip_us, OutboxLiveTraffic live)
{
	ack(outbox_player_in_flight(&player), round_trip_us);
	outbox_player_poll(&player, now, live);
	return send_all(now);
}

/* ---------- the window ---------- */

static void
test_window(void)
{
	int64_t		now = DAY;
	int			sent = 0;

	begin(0, 100000);
	ok(send_all(now) == FIRST_WINDOW && wait_us == -1, "begins with %d; then an answer must come first", FIRST_WINDOW);
	ack(10, 1000);
	outbox_player_poll(&player, now += MS, OUTBOX_LIVE_IDLE);
	ok(send_all(now) == 20, "an answer in time makes room for two");
	for (int i = 0; i < 10; i++)
		sent = turn(now += MS, 1000, OUTBOX_LIVE_IDLE);
	ok(sent == OUTBOX_PLAYER_WINDOW, "up to %d", sent);

	for (int i = 1; i < OUTBOX_PLAYER_WINDOW; i++)
		answer(broker.count - i, BROKER_ACKED, 1000, false);
	outbox_player_poll(&player, now += MS, OUTBOX_LIVE_IDLE);
	ok(outbox_player_in_flight(&player) == 1 && send_all(now) == 0, "not more behind one that is unanswered");

	begin(0, 5);
	ok(send_all(now) == 5, "or as many as there may be at most");
	begin(0, OUTBOX_PLAYER_WINDOW);
	send_all(now);
	player.max_window = LIVE_WINDOW;
	ok(turn(now += MS, 1000, OUTBOX_LIVE_ACTIVE) == LIVE_WINDOW, "which may change on the way");
	ok(turn(now += MS, 1000, OUTBOX_LIVE_BUSY) == SMALLEST_WINDOW, "at once to the smallest when others wait");
	ok(turn(now += MS, 1000, OUTBOX_LIVE_ACTIVE) == LIVE_WINDOW, "and back");
}

/* Round trips that get longer by so much: whether the window shrinks. */
static int
window_after_delay(int delay_us, OutboxLiveTraffic live, int turns)
{
	int64_t		now = DAY;
	int			sent = 0;

	begin(0, OUTBOX_PLAYER_WINDOW);
	send_all(now);
	for (int i = 0; i < 10; i++)
		sent = turn(now += MS, 1000, live);
	for (int i = 0; i < turns; i++)
		sent = turn(now += MS + delay_us + 1, 1000 + delay_us, live);
	return sent;
}

static void
test_queue(void)
{
	int64_t		now = DAY;
	int			full = OUTBOX_PLAYER_WINDOW;

	ok(window_after_delay(490, OUTBOX_LIVE_ACTIVE, 5) == full, "answers a little later are none of our business");
	ok(window_after_delay(500, OUTBOX_LIVE_ACTIVE, 1) == full / 2, "half a millisecond beside live traffic is a queue: half of the window");
	ok(window_after_delay(500, OUTBOX_LIVE_ACTIVE, 2) == full / 4, "again when it is still there");
	ok(window_after_delay(500, OUTBOX_LIVE_ACTIVE, 20) == SMALLEST_WINDOW, "not below %d", SMALLEST_WINDOW);
	ok(window_after_delay(49 * 1000, OUTBOX_LIVE_IDLE, 5) == full && window_after_delay(50 * 1000, OUTBOX_LIVE_IDLE, 1) == full / 2,
	   "without live traffic a queue may be longer");

	begin(0, OUTBOX_PLAYER_WINDOW);
	for (int i = 0; i < 6; i++)
		turn(now += MS, 1000, OUTBOX_LIVE_ACTIVE);
	ack(OUTBOX_PLAYER_SAMPLES - 1, 90 * 1000);
	ack(1, 1000);
	outbox_player_poll(&player, now += MS, OUTBOX_LIVE_ACTIVE);
	ok(send_all(now) == OUTBOX_PLAYER_SAMPLES, "some late answers among others are no queue");
	for (int i = 0; i < 12; i++)
		turn(now += SECOND, 5000, OUTBOX_LIVE_ACTIVE);
	ok(outbox_player_in_flight(&player) == SMALLEST_WINDOW, "a way that has become longer looks like one");
	for (int i = 0; i < 20; i++)
		turn(now += SECOND, 5000, OUTBOX_LIVE_ACTIVE);
	ok(outbox_player_in_flight(&player) == full, "but not for ever");
}

/* ---------- groups beside live traffic ---------- */

static void
begin_groups(int64_t rate)
{
	begin(rate, LIVE_WINDOW);
	player.in_groups = true;
}

static void
test_groups(void)
{
	int64_t		now = DAY;

	begin_groups(0);
	ok(send_all(now) == LIVE_WINDOW && wait_us == -1, "the first group goes at once");
	ack(LIVE_WINDOW / 2, 1000);
	outbox_player_poll(&player, now += MS, OUTBOX_LIVE_ACTIVE);
	ok(send_all(now) == 0 && wait_us == -1, "none behind it while one of it is unanswered");
	ok(turn(now += 2 * MS, 1000, OUTBOX_LIVE_ACTIVE) == 0 && wait_us == 3 * MS, "then a pause as long as it was under way");
	ok(send_all(now + 3 * MS - 1) == 0 && wait_us == 1, "to its end");
	ok(send_all(now += 3 * MS) == LIVE_WINDOW, "and the next");
	outbox_player_poll(&player, now, OUTBOX_LIVE_BUSY);
	turn(now += MS, 1000, OUTBOX_LIVE_BUSY);
	ok(send_all(now += MS) == SMALLEST_WINDOW, "a small one when others wait");
	ack(SMALLEST_WINDOW, 1000);
	outbox_player_poll(&player, now += MS, OUTBOX_LIVE_ACTIVE);
	player.in_groups = false;
	ok(send_all(now) == LIVE_WINDOW, "no pause when live traffic has ended");
	outbox_player_poll(&player, now += MS, OUTBOX_LIVE_IDLE);
	ok(turn(now, 1000, OUTBOX_LIVE_IDLE) == LIVE_WINDOW && turn(now, 1000, OUTBOX_LIVE_IDLE) == LIVE_WINDOW, "nor between two then");
}

/* The clock may have run for long when live traffic overtakes a replay in its first group. */
static void
test_overtaken(void)
{
	int64_t		now = 300 * DAY;

	begin(0, OUTBOX_PLAYER_WINDOW);
	send_all(now);
	player.in_groups = true;
	player.max_window = LIVE_WINDOW;
	ok(turn(now += 5 * MS, 5000, OUTBOX_LIVE_ACTIVE) == 0 && wait_us == 5 * MS, "live traffic overtakes the first messages: a pause as long as they took");
	ok(send_all(now + wait_us) == LIVE_WINDOW, "and it goes on");

	begin(0, OUTBOX_PLAYER_WINDOW);
	send_all(now);
	turn(now += HOUR, 1000, OUTBOX_LIVE_IDLE);
	player.in_groups = true;
	turn(now += MS, 1000, OUTBOX_LIVE_ACTIVE);
	ok(wait_us == MS, "what was before doesn't count");
}

/* An interrupted group: by outbox.pause(), a slow source, a rate. */
static void
test_gaps(void)
{
	int64_t		now = DAY;
	int64_t		end;

	begin_groups(0);
	for (int i = 0; i < 4; i++)
		send_one(now, aggregate_of(next_position));
	ack(4, 1000);
	outbox_player_poll(&player, now += MS, OUTBOX_LIVE_ACTIVE);
	ok(send_all(now += HOUR) == LIVE_WINDOW - 4, "a group that was interrupted goes on");
	ok(turn(now += 2 * MS, 1000, OUTBOX_LIVE_ACTIVE) == 0 && wait_us == 3 * MS, "its pause is as long as it was under way, no longer");

	begin_groups(0);
	outbox_player_poll(&player, now, OUTBOX_LIVE_BUSY);
	for (int i = 0; i < 4; i++)
	{
		send_one(now, aggregate_of(next_position));
		answer(i, BROKER_LOST, 0, false);
	}
	outbox_player_poll(&player, now += MS, OUTBOX_LIVE_BUSY);
	outbox_player_rewind(&player);
	ok(send_all(now) == LIVE_WINDOW, "after trouble the next group is a whole one");

	begin_groups(1000);
	send_all(now);
	send_all(now += 10 * MS);
	for (int i = 0; i < 4; i++)
		turn(now += 2 * MS, 1000, OUTBOX_LIVE_ACTIVE);
	ok(broker.count == LIVE_WINDOW && wait_us == 8 * MS, "nor does it last longer for a rate that held it up");

	begin_groups(100);
	end = now + 10 * SECOND;
	while (now < end)
		turn(now += MS, 1000, OUTBOX_LIVE_ACTIVE);
	ok(next_position > 800, "a rate that is lower anyway is nearly reached: %lld in 10 s", (long long) next_position);
}

/* ---------- the rate ---------- */

/* How many are sent within a second, each acked at once. */
static int
sent_in_a_second(int64_t *now)
{
	int64_t		end = *now + SECOND;
	int			sent = 0;

	for (;;)
	{
		sent += turn(*now, 1000, OUTBOX_LIVE_IDLE);
		if (outbox_player_in_flight(&player) > 0)
			continue;
		if (*now + wait_us >= end)
			break;
		*now += wait_us;
	}
	*now = end;
	return sent;
}

static void
test_rate(void)
{
	int64_t		now = DAY;
	const int	rates[] = {1, 7, 100, 12345};

	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
	{
		int			first;
		int			later;
		int			burst = rates[i] / 100 > 1 ? rates[i] / 100 : 1;

		begin(rates[i], OUTBOX_PLAYER_WINDOW);
		first = sent_in_a_second(&now);
		now += 100 * SECOND;
		later = sent_in_a_second(&now);
		ok(first <= rates[i] && first >= rates[i] - 1, "%d a second: %d", rates[i], first);
		ok(later >= first && later <= rates[i] + burst, "after an idle time a hundredth more at most: %d", later);
	}
	begin(1000, OUTBOX_PLAYER_WINDOW);
	broker.result = BROKER_PUBLISH_FULL;
	(void) send_all(now);
	(void) send_all(now += 5 * MS);
	broker.result = BROKER_PUBLISH_OK;
	ok(send_all(now) == 5, "what can't be handed over takes nothing of it");
}

/* ---------- refusals ---------- */

static void
test_refused(void)
{
	int64_t		now = DAY;

	begin(0, OUTBOX_PLAYER_WINDOW);
	for (int i = 0; i < 10; i++)
		send_one(now, aggregate_of(next_position));
	broker.result = BROKER_PUBLISH_FULL;
	ok(!send_one(now, 11) && player.trouble == OUTBOX_PLAYER_FINE && outbox_player_in_flight(&player) == 10, "no room in the client is no trouble");
	broker.result = BROKER_PUBLISH_REFUSED;
	ok(!send_one(now, 11) && player.trouble == OUTBOX_PLAYER_REFUSED, "what the client refuses is");
	broker.result = BROKER_PUBLISH_OK;
	ok(!send_one(now, 12) && outbox_player_in_flight(&player) == 10, "nothing is sent after it");
	ack(9, 1000);
	outbox_player_poll(&player, now, OUTBOX_LIVE_IDLE);
	ok(player.reached == 9 && player.done == 9 && outbox_player_in_flight(&player) == 1, "the answers are waited for");
	ack(1, 1000);
	outbox_player_poll(&player, now, OUTBOX_LIVE_IDLE);
	ok(player.reached == 10 && player.reached_time == 1010 && player.done == 10, "reached is what is before it");
	ok(player.trouble_position == 11 && strcmp(player.text, "too large") == 0 && outbox_player_ahead(&player) == 0, "and it is named");
}

/* Ten messages, of which the second to the fourth are answered so, in this order. */
static void
three_answers(BrokerOutcomeKind second, BrokerOutcomeKind third, BrokerOutcomeKind fourth, const int *order)
{
	BrokerOutcomeKind kinds[] = {second, third, fourth};

	begin(0, OUTBOX_PLAYER_WINDOW);
	for (int i = 0; i < 10; i++)
		send_one(DAY, aggregate_of(next_position));
	for (int i = 0; i < 3; i++)
		answer(order[i], kinds[order[i] - 1], 1000, false);
	ack(7, 1000);
	outbox_player_poll(&player, DAY, OUTBOX_LIVE_IDLE);
}

/* Which trouble is named doesn't depend on the order of the answers. */
static void
test_troubles(void)
{
	static const int orders[][3] = {{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}};
	static const struct
	{
		BrokerOutcomeKind kinds[3];
		OutboxPlayerTrouble trouble;
		int64_t		position;
		const char *text;
	} cases[] = {
		{{BROKER_TIMED_OUT, BROKER_LOST, BROKER_BAD_REPLY}, OUTBOX_PLAYER_UNKNOWN, 2, "message 1"},
		{{BROKER_TIMED_OUT, BROKER_REFUSED, BROKER_NO_RESPONDERS}, OUTBOX_PLAYER_REFUSED, 3, "JetStream error 10077: message 2"},
		{{BROKER_TIMED_OUT, BROKER_ACKED, BROKER_DENIED}, OUTBOX_PLAYER_REFUSED, 4, "message 3"},
		{{BROKER_NO_RESPONDERS, BROKER_LOST, BROKER_REFUSED}, OUTBOX_PLAYER_REFUSED, 2, "message 1"},
		{{BROKER_ACKED, BROKER_BAD_REPLY, BROKER_LOST}, OUTBOX_PLAYER_UNKNOWN, 3, "message 2"}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		const BrokerOutcomeKind *kinds = cases[i].kinds;
		int64_t		reached = kinds[0] == BROKER_ACKED ? 2 : 1;
		int			acked = 7;
		int			wrong = 0;

		for (int k = 0; k < 3; k++)
			acked += kinds[k] == BROKER_ACKED;
		for (size_t j = 0; j < sizeof(orders) / sizeof(orders[0]); j++)
		{
			three_answers(kinds[0], kinds[1], kinds[2], orders[j]);
			wrong += player.trouble != cases[i].trouble || player.trouble_position != cases[i].position || strcmp(player.text, cases[i].text) != 0;
			wrong += player.reached != reached || player.done != reached || outbox_player_ahead(&player) != acked - reached;
			wrong += outbox_player_in_flight(&player) != 0 || send_one(DAY, 1);
		}
		ok(wrong == 0, "trouble at position %lld, whatever the order of the answers", (long long) cases[i].position);
	}
}

/* ---------- order within an aggregate ---------- */

static void
test_order(void)
{
	const uint64_t next_bucket = 4 * OUTBOX_PLAYER_WINDOW;
	int64_t		now = DAY;

	begin(0, OUTBOX_PLAYER_WINDOW);
	ok(send_one(now, 1) && !send_one(now, 1) && wait_us == -1, "one of an aggregate at a time");
	ok(send_one(now, 1 + next_bucket) && send_one(now, 1 + 2 * next_bucket) && send_one(now, 2), "others aren't held up, of whatever hash");
	ok(!send_one(now, 1) && !send_one(now, 1 + next_bucket) && !send_one(now, 1 + 2 * next_bucket), "and count, too");
	answer(1, BROKER_ACKED, 1000, false);
	outbox_player_poll(&player, now, OUTBOX_LIVE_IDLE);
	ok(!send_one(now, 1) && !send_one(now, 1 + 2 * next_bucket) && send_one(now, 1 + next_bucket), "the one that is answered may go on");
	answer(0, BROKER_ACKED, 1000, false);
	answer(2, BROKER_ACKED, 1000, false);
	answer(4, BROKER_ACKED, 1000, false);
	outbox_player_poll(&player, now, OUTBOX_LIVE_IDLE);
	ok(send_one(now, 1) && send_one(now, 1 + next_bucket) && send_one(now, 1 + 2 * next_bucket) && !send_one(now, 2), "all that are");
}

/* ---------- what is sent twice ---------- */

static void
test_repeated(void)
{
	int64_t		ahead;

	begin(0, OUTBOX_PLAYER_WINDOW);
	for (int i = 0; i < 10; i++)
		send_one(DAY, aggregate_of(next_position));
	for (int i = 0; i < 10; i++)
	{
		if (i != 4 && i != 6)
			answer(i, BROKER_ACKED, 1000, false);
	}
	answer(4, BROKER_LOST, 0, false);
	answer(6, BROKER_LOST, 0, false);
	outbox_player_poll(&player, DAY, OUTBOX_LIVE_IDLE);
	ahead = outbox_player_ahead(&player);
	ok(player.reached == 4 && ahead == 4, "of ten, two are in doubt: four behind the first are stored");
	ok(outbox_player_repeated(&player, 0) == 0, "none of them was sent twice so far");
	outbox_player_rewind(&player);
	ok(player.trouble == OUTBOX_PLAYER_FINE && player.reached == 4 && player.done == 4 && outbox_player_ahead(&player) == 0,
	   "the next run begins at the position reached");
	next_position = 5;
	for (int i = 0; i < 6; i++)
		send_one(DAY, aggregate_of(next_position));
	for (int i = 10; i < 16; i++)
		answer(i, BROKER_ACKED, 1000, i != 12);
	outbox_player_poll(&player, DAY, OUTBOX_LIVE_IDLE);
	ok(player.reached == 10 && player.done == 10, "each counts once");
	ok(outbox_player_repeated(&player, ahead) == 5, "the stream had five of them: one of those in doubt, too");
	ok(outbox_player_repeated(&player, 7) == 7, "what it has forgotten was nevertheless sent twice");
}

/* ---------- at random ---------- */

#define EVENTS 2000

/* One replay, beside live traffic that comes and goes, to a stream that fails. */
typedef struct Run
{
	int64_t		now;
	int64_t		rate;
	int			failures;		/* of a thousand messages */
	OutboxLiveTraffic live;
	int64_t		live_until;
	int64_t		due[MAX_MESSAGES]; /* when a message is answered, and how */
	BrokerOutcomeKind kind[MAX_MESSAGES];
	bool		duplicate[MAX_MESSAGES];
	bool		known[EVENTS + 1]; /* to be stored, since the last rewind */
	bool		stored[EVENTS + 1];
	int64_t		duplicates;
	int			rewinds;
	const char *broken;			/* the first promise that was; NULL: none */
} Run;

static Run run;

static void
promise(bool kept, const char *what)
{
	if (!kept && run.broken == NULL)
		run.broken = what;
}

/* The fate of the message published last. */
static void
deliver(void)
{
	int			number = broker.count - 1;
	int64_t		position = broker.sent[number].position;
	bool		arrives = true;

	promise(broker.count < MAX_MESSAGES - 1, "it comes to an end");
	for (int i = broker.first; i < number; i++)
		promise(broker.sent[i].answered || aggregate_of(broker.sent[i].position) != aggregate_of(position), "one of an aggregate in flight");
	promise(outbox_player_in_flight(&player) <= player.max_window, "not more in flight than may be");
	run.due[number] = run.now + 200 + below(one_in(20) ? 20000 : 1000);
	run.kind[number] = BROKER_ACKED;
	if (below(1000) < run.failures)
	{
		run.kind[number] = (BrokerOutcomeKind) below(BROKER_OUTCOME_KINDS);
		arrives = run.kind[number] == BROKER_ACKED || (run.kind[number] != BROKER_REFUSED && run.kind[number] != BROKER_DENIED && run.kind[number] != BROKER_NO_RESPONDERS && one_in(2));
	}
	if (!arrives)
		return;
	for (int64_t before = position - aggregates; before > 0 && !run.stored[position]; before -= aggregates)
		promise(run.stored[before], "an aggregate's events are stored in their order");
	run.duplicate[number] = run.stored[position];
	run.stored[position] = true;
}

/* Answers that are due. */
static void
answer_due(void)
{
	for (int i = broker.first; i < broker.count; i++)
	{
		if (broker.sent[i].answered || run.due[i] > run.now)
			continue;
		answer(i, run.kind[i], 500, run.duplicate[i]);
		run.duplicates += run.kind[i] == BROKER_ACKED && run.duplicate[i];
		run.known[broker.sent[i].position] |= run.kind[i] == BROKER_ACKED;
	}
}

/* Whoever resumes a replay reads on from the position reached. */
static void
resume(void)
{
	int64_t		reached = 0;
	int			ahead = 0;

	while (reached < EVENTS && run.known[reached + 1])
		reached++;
	for (int64_t i = reached + 1; i <= EVENTS; i++)
	{
		ahead += run.known[i];
		run.known[i] = false;
	}
	promise(player.reached == reached && player.done == reached, "reached is all that is known to be stored from the first on");
	promise(player.trouble_position > reached, "trouble is behind it");
	promise(outbox_player_ahead(&player) == ahead, "what is ahead is known");
	outbox_player_rewind(&player);
	next_position = player.reached + 1;
	run.rewinds++;
}

static void
change_live(void)
{
	run.live = (OutboxLiveTraffic) below(3);
	run.live_until = run.now + 1 + below(30 * MS);
	player.in_groups = run.live != OUTBOX_LIVE_IDLE;
	player.max_window = player.in_groups ? LIVE_WINDOW : OUTBOX_PLAYER_WINDOW;
}

/* Time until something can happen. */
static void
pass_time(void)
{
	int64_t		until = INT64_MAX;

	for (int i = broker.first; i < broker.count; i++)
	{
		if (!broker.sent[i].answered && run.due[i] < until)
			until = run.due[i];
	}
	promise(wait_us <= SECOND, "no pause is longer than a second");
	promise(until < INT64_MAX || wait_us >= 0 || player.trouble != OUTBOX_PLAYER_FINE || next_position > EVENTS, "it doesn't stand still");
	if (wait_us >= 0 && run.now + wait_us < until)
		until = run.now + wait_us;
	if (run.live_until < until)
		until = run.live_until;
	run.now = until > run.now ? until : run.now;
}

static void
replay_once(uint64_t seed)
{
	random_state = mix(seed);
	memset(&run, 0, sizeof(run));
	run.now = below(400) * DAY;
	run.failures = below(3) * 5;
	run.rate = one_in(3) ? 2000 + below(100000) : 0;
	begin(run.rate, OUTBOX_PLAYER_WINDOW);
	aggregates = 1 + below(one_in(2) ? 10 : 1000);
	while (run.broken == NULL && player.done < EVENTS)
	{
		if (run.now >= run.live_until)
			change_live();
		answer_due();
		outbox_player_poll(&player, run.now, run.live);
		wait_us = -1;
		while (next_position <= EVENTS && run.broken == NULL && send_one(run.now, aggregate_of(next_position)))
			deliver();
		if (player.trouble != OUTBOX_PLAYER_FINE && outbox_player_in_flight(&player) == 0)
			resume();
		else
			pass_time();
	}
	promise(player.reached == EVENTS && player.done == EVENTS, "all is reached");
	promise(player.duplicates == run.duplicates, "duplicates are counted");
	for (int i = 1; i <= EVENTS; i++)
		promise(run.stored[i], "all is stored");
}

static void
test_random(void)
{
	int			runs = 300;
	int			rewinds = 0;
	int			broken = 0;

	for (int seed = 1; seed <= runs; seed++)
	{
		replay_once((uint64_t) seed);
		rewinds += run.rewinds;
		if (run.broken != NULL && broken++ < 5)
			diag("seed %d: not so: %s", seed, run.broken);
	}
	ok(broken == 0 && rewinds > runs, "%d replays, %d of them resumed ones, keep their promises", runs + rewinds, rewinds);
}

int
main(void)
{
	test_window();
	test_queue();
	test_groups();
	test_overtaken();
	test_gaps();
	test_rate();
	test_refused();
	test_troubles();
	test_order();
	test_repeated();
	test_random();
	return unit_done();
}
