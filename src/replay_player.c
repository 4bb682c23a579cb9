/*
 * replay_player.c
 *	  Sends messages to a stream in their order, and knows how far it has come.
 *
 * Messages go out one behind the other on one connection, so they are stored in
 * their order; but should one be refused, those behind it may be stored
 * nevertheless. So none is sent while another one of its aggregate is
 * unanswered: the order within an aggregate holds whatever happens.
 *
 * Live traffic comes first. The window grows only while answers come about as
 * fast as the fastest of the last seconds did; when they come later, a queue has
 * built up, here or of others, and the window shrinks to half. In groups, one
 * window each, it makes a pause behind each that is as long as the group was
 * under way: half of the time server, disk and CPU are free of it. So a replay
 * uses what is left over and adds little to the time that others wait.
 */
#include "replay_player.h"

#include <stdio.h>
#include <string.h>

#define MIN_WINDOW 8
#define FIRST_WINDOW 64

/* A round trip may be so much longer than the shortest one: beside live traffic, and without. */
#define LIVE_QUEUE_US 500
#define IDLE_QUEUE_US 50000

/* The shortest round trip is of these last microseconds, or of twice the time. */
#define BASE_US INT64_C(10000000)

/* A burst of the rate limit: as much as a hundredth of a second allows. */
#define BURST_DIVISOR 100

void
outbox_player_begin(OutboxPlayer *player, Broker *broker, int64_t rate, int max_window)
{
	memset(player, 0, sizeof(*player));
	player->broker = broker;
	player->rate = rate;
	player->max_window = max_window < OUTBOX_PLAYER_WINDOW ? max_window : OUTBOX_PLAYER_WINDOW;
	player->window = FIRST_WINDOW < player->max_window ? FIRST_WINDOW : player->max_window;
	player->base_us = player->next_base_us = INT32_MAX;
}

void
outbox_player_rewind(OutboxPlayer *player)
{
	player->head = player->tail;
	player->waiting = 0;
	player->trouble = OUTBOX_PLAYER_FINE;
	player->trouble_position = 0;
	player->group_left = 0;
	player->window = FIRST_WINDOW < player->max_window ? FIRST_WINDOW : player->max_window;
}

static int *
bucket_of(OutboxPlayer *player, uint64_t aggregate)
{
	return &player->buckets[aggregate % (4 * OUTBOX_PLAYER_WINDOW)];
}

/* Whether an event of the aggregate is unanswered. */
static bool
is_busy(OutboxPlayer *player, uint64_t aggregate)
{
	int			at = *bucket_of(player, aggregate);

	while (at != 0 && player->flight[at - 1].aggregate != aggregate)
		at = player->flight[at - 1].next;
	return at != 0;
}

static void
make_busy(OutboxPlayer *player, OutboxPlayed *played)
{
	int		   *bucket = bucket_of(player, played->aggregate);

	played->next = *bucket;
	*bucket = (int) (played - player->flight) + 1;
}

static void
make_free(OutboxPlayer *player, const OutboxPlayed *played)
{
	int			index = (int) (played - player->flight) + 1;
	int		   *at = bucket_of(player, played->aggregate);

	while (*at != index)
		at = &player->flight[*at - 1].next;
	*at = played->next;
}

/* Whether the rate allows one more. */
static bool
rate_allows(OutboxPlayer *player, int64_t now_us, int64_t *wait_us)
{
	double		burst = (double) player->rate / BURST_DIVISOR;

	if (player->rate == 0)
		return true;
	if (burst < 1)
		burst = 1;
	if (player->tokens_at == 0)
		player->tokens_at = now_us;
	player->tokens += (double) (now_us - player->tokens_at) * (double) player->rate / 1e6;
	player->tokens_at = now_us;
	if (player->tokens > burst)
		player->tokens = burst;
	if (player->tokens >= 1)
		return true;
	*wait_us = (int64_t) ((1 - player->tokens) * 1e6 / (double) player->rate) + 1;
	return false;
}

/* Whether the group goes on, or the next one may begin. */
static bool
group_allows(OutboxPlayer *player, int64_t now_us, int64_t *wait_us)
{
	if (!player->in_groups)
		player->group_at = now_us; /* for the pause before the first group */
	else if (player->group_left > 0 && player->waiting == 0)
		player->group_at += now_us - player->free_at; /* nothing was under way: no reason for a pause */
	if (player->waiting == 0)
		player->free_at = now_us;
	if (!player->in_groups || player->group_left > 0)
		return true;
	if (player->waiting > 0)
		return false;
	if (now_us < player->next_group_at)
	{
		*wait_us = player->next_group_at - now_us;
		return false;
	}
	player->group_left = player->window;
	player->group_at = now_us;
	return true;
}

bool
outbox_player_may_send(OutboxPlayer *player, uint64_t aggregate, int64_t now_us, int64_t *wait_us)
{
	*wait_us = -1;
	if (player->trouble != OUTBOX_PLAYER_FINE || player->tail - player->head >= OUTBOX_PLAYER_WINDOW ||
		player->waiting >= (uint64_t) player->window || is_busy(player, aggregate))
		return false;
	return group_allows(player, now_us, wait_us) && rate_allows(player, now_us, wait_us);
}

static void
note_trouble(OutboxPlayer *player, OutboxPlayerTrouble trouble, int64_t position, int code, const char *text)
{
	/* Of several the first in the order counts, and a refusal more than doubt. */
	if (player->trouble == trouble ? player->trouble_position < position : player->trouble == OUTBOX_PLAYER_REFUSED)
		return;
	player->trouble = trouble;
	player->trouble_position = position;
	if (code != 0)
		snprintf(player->text, sizeof(player->text), "JetStream error %d: %s", code, text);
	else
		snprintf(player->text, sizeof(player->text), "%s", text);
}

bool
outbox_player_send(OutboxPlayer *player, const BrokerMessage *message, int64_t position, int64_t created_at,
				   uint64_t aggregate)
{
	OutboxPlayed *played = &player->flight[player->tail % OUTBOX_PLAYER_WINDOW];
	BrokerPublishResult result;
	char		text[BROKER_TEXT_SIZE];
	int			code;

	result = broker_publish(player->broker, message, played, &code, text);
	if (result == BROKER_PUBLISH_REFUSED)
		note_trouble(player, OUTBOX_PLAYER_REFUSED, position, code, text);
	if (result != BROKER_PUBLISH_OK)
		return false;
	*played = (OutboxPlayed) {.position = position, .created_at = created_at, .aggregate = aggregate};
	make_busy(player, played);
	player->tail++;
	player->waiting++;
	if (player->group_left > 0)
		player->group_left--;
	if (player->rate > 0)
		player->tokens -= 1;
	return true;
}

/* ---------------------------------------------------------------- answers */

/* A larger window while no queue builds up, half of it when one does; not twice for the same queue. */
static void
adjust_window(OutboxPlayer *player, int round_trip_us, int64_t now_us, OutboxLiveTraffic live)
{
	int			queue_us = live == OUTBOX_LIVE_IDLE ? IDLE_QUEUE_US : LIVE_QUEUE_US;

	if (now_us > player->base_until)
	{
		player->base_us = player->next_base_us;
		player->next_base_us = INT32_MAX;
		player->base_until = now_us + BASE_US;
	}
	if (round_trip_us < player->next_base_us)
		player->next_base_us = round_trip_us;
	if (round_trip_us < player->base_us)
		player->base_us = round_trip_us;
	player->recent_us[player->recent_at++ % OUTBOX_PLAYER_SAMPLES] = round_trip_us;
	for (int i = 0; i < OUTBOX_PLAYER_SAMPLES; i++)
	{
		if (player->recent_us[i] < round_trip_us)
			round_trip_us = player->recent_us[i];
	}
	if (round_trip_us - player->base_us < queue_us)
	{
		if (player->window < player->max_window)
			player->window++;
	}
	else if (now_us - player->shrunk_at > round_trip_us)
	{
		player->window = player->window / 2 > MIN_WINDOW ? player->window / 2 : MIN_WINDOW;
		player->shrunk_at = now_us;
	}
}

/* Whether an outcome means that the message is not stored, and why is known. */
static bool
is_refusal(BrokerOutcomeKind kind)
{
	return kind == BROKER_REFUSED || kind == BROKER_NO_RESPONDERS || kind == BROKER_DENIED;
}

static void
take(OutboxPlayer *player, const BrokerOutcome *outcome, int64_t now_us, OutboxLiveTraffic live)
{
	OutboxPlayed *played = outcome->cookie;

	player->waiting--;
	if (player->waiting == 0)
		player->free_at = now_us;
	if (player->waiting == 0 && player->group_left == 0)
		player->next_group_at = now_us + (now_us - player->group_at);
	make_free(player, played);
	if (outcome->kind == BROKER_ACKED)
	{
		played->acked = true;
		player->duplicates += outcome->duplicate;
		adjust_window(player, outcome->round_trip_us, now_us, live);
	}
	else
		note_trouble(player, is_refusal(outcome->kind) ? OUTBOX_PLAYER_REFUSED : OUTBOX_PLAYER_UNKNOWN, played->position,
					 outcome->code, outcome->text);
	while (player->head < player->tail && player->flight[player->head % OUTBOX_PLAYER_WINDOW].acked)
	{
		player->reached = player->flight[player->head % OUTBOX_PLAYER_WINDOW].position;
		player->reached_time = player->flight[player->head % OUTBOX_PLAYER_WINDOW].created_at;
		player->done++;
		player->head++;
	}
}

int
outbox_player_ahead(const OutboxPlayer *player)
{
	int			ahead = 0;

	for (uint64_t i = player->head; i < player->tail; i++)
		ahead += player->flight[i % OUTBOX_PLAYER_WINDOW].acked;
	return ahead;
}

int64_t
outbox_player_repeated(const OutboxPlayer *player, int64_t ahead)
{
	return player->duplicates > ahead ? player->duplicates : ahead;
}

void
outbox_player_poll(OutboxPlayer *player, int64_t now_us, OutboxLiveTraffic live)
{
	BrokerOutcome outcomes[64];
	int			count;

	do
	{
		count = broker_poll(player->broker, outcomes, 64);
		for (int i = 0; i < count; i++)
			take(player, &outcomes[i], now_us, live);
	} while (count == 64);
	if (player->window > player->max_window)
		player->window = player->max_window;
	if (live == OUTBOX_LIVE_BUSY)
		player->window = MIN_WINDOW;
}
