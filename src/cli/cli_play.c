/*
 * cli_play.c
 *	  Sends the events of a replay, and waits for their acknowledgements.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../replay_player.h"
#include "cli.h"

#define RETRY_BASE_US 200000
#define MAX_TRIES 10
#define LONGEST_WAIT_MS 200
#define EXIT_GRACE_MS 2500

volatile int cli_interrupted = 0;

typedef struct Play
{
	const CliOptions *options;
	const OutboxEnvelope *envelope;
	int64_t		total;
	int64_t		since_us;
	OutboxReplaySource *source;
	bool		ended;
	OutboxPlayer player;
	void	   *block;			/* with the message to be sent next; NULL: none */
	BrokerMessage message;
	int64_t		position;
	int64_t		created_at;
	uint64_t	aggregate;
	int			tries;
	int64_t		tried_at_done;
	int64_t		retry_at;
	int64_t		ahead;			/* sent again after a lost connection */
	int			exit_code;
	char		text[OUTBOX_SOURCE_TEXT_SIZE];
} Play;

/* The play ends with this code. */
static void
end_with(Play *play, int exit_code, const char *text)
{
	play->exit_code = exit_code;
	snprintf(play->text, sizeof(play->text), "%s", text);
}

static bool
open_source(Play *play)
{
	char		error[OUTBOX_SOURCE_TEXT_SIZE];

	if (play->source != NULL)
		play->source->close(play->source);
	free(play->block);
	play->block = NULL;
	play->ended = false;
	play->source = cli_open(play->options, play->envelope, play->player.reached, error);
	if (play->source == NULL)
		end_with(play, CLI_SOURCE, error);
	return play->source != NULL;
}

/* Gets the next message ready. False: there is none, or the play is over. */
static bool
prepare_next(Play *play)
{
	OutboxRow	row;
	const char *error;
	size_t		size;

	if (play->block != NULL)
		return true;
	if (play->ended || play->exit_code >= 0)
		return false;
	switch (play->source->next(play->source, &row))
	{
		case OUTBOX_SOURCE_LATER:	/* none of its sources says so */
		case OUTBOX_SOURCE_END:
			play->ended = true;
			return false;
		case OUTBOX_SOURCE_FAILED:
			end_with(play, CLI_SOURCE, play->source->error);
			return false;
		case OUTBOX_SOURCE_ROW:
			break;
	}
	play->position = row.position;
	play->created_at = row.created_at;
	play->aggregate = outbox_source_aggregate(&row);
	play->block = outbox_envelope_make(play->envelope, &row, 0, &play->message, &size, &error);
	if (play->block == NULL)
		end_with(play, CLI_SOURCE, error);
	return play->block != NULL;
}

/* Sends what may be sent. Returns microseconds until more may, -1: when an answer has come. */
static int64_t
send_events(Play *play, Broker *broker)
{
	int64_t		wait_us = -1;

	while (!cli_interrupted && prepare_next(play) &&
		   outbox_player_may_send(&play->player, play->aggregate, cli_now_us(), &wait_us) &&
		   outbox_player_send(&play->player, &play->message, play->position, play->created_at, play->aggregate))
	{
		free(play->block);
		play->block = NULL;
	}
	broker_flush(broker);
	return wait_us;
}

/* When nothing is in flight any more: whether it is over, or is to go on. */
static void
judge(Play *play, Broker *broker, int64_t now_us)
{
	OutboxPlayer *player = &play->player;
	BrokerStatus status;

	broker_get_status(broker, &status);
	if (outbox_player_in_flight(player) > 0 || play->exit_code >= 0)
		return;
	if (cli_interrupted)
		end_with(play, CLI_INTERRUPTED, "interrupted");
	else if (player->trouble == OUTBOX_PLAYER_UNKNOWN)
	{
		play->tries = player->done > play->tried_at_done ? 1 : play->tries + 1;
		play->tried_at_done = player->done;
		play->ahead += outbox_player_ahead(player);
		if (play->tries > MAX_TRIES)
			end_with(play, CLI_TARGET, player->text);
		else
		{
			outbox_player_rewind(player);
			play->retry_at = now_us + ((int64_t) RETRY_BASE_US << (play->tries - 1));
			(void) open_source(play);
		}
	}
	else if (player->trouble == OUTBOX_PLAYER_REFUSED)
		end_with(play, CLI_REFUSED, player->text);
	else if (status.state == BROKER_ONLINE && status.text[0] != '\0')
		end_with(play, CLI_REFUSED, status.text);
	else if (play->ended && play->block == NULL)
		end_with(play, CLI_DONE, "");
}

/* The first connection must come about in time; a later one is waited for. */
static bool
connect_first(Play *play, Broker *broker)
{
	int64_t		until_us = cli_now_us() + (int64_t) play->options->broker.connect_timeout_ms * 2000;
	BrokerStatus status;

	for (;;)
	{
		struct pollfd wait = {.fd = broker_fd(broker), .events = POLLIN};
		BrokerOutcome outcome;

		(void) broker_poll(broker, &outcome, 1);
		broker_get_status(broker, &status);
		if (status.state == BROKER_ONLINE)
			return true;
		if (cli_interrupted || cli_now_us() > until_us)
			break;
		(void) poll(&wait, 1, LONGEST_WAIT_MS);
	}
	if (cli_interrupted)
		end_with(play, CLI_INTERRUPTED, "interrupted");
	else
		end_with(play, CLI_TARGET, status.text[0] == '\0' ? "no connection in time" : status.text);
	return false;
}

static void
run(Play *play, Broker *broker)
{
	while (play->exit_code < 0)
	{
		struct pollfd wait = {.fd = broker_fd(broker), .events = POLLIN};
		int64_t		now_us = cli_now_us();
		int64_t		wait_us = -1;
		int			limit;

		outbox_player_poll(&play->player, now_us, OUTBOX_LIVE_ACTIVE);
		if (now_us >= play->retry_at)
			wait_us = send_events(play, broker);
		judge(play, broker, now_us);
		if (!play->options->quiet)
			cli_show_progress("replayed", play->player.done, play->total, play->since_us, play->exit_code >= 0);
		limit = broker_poll_within(broker);
		if (limit < 0 || limit > LONGEST_WAIT_MS)
			limit = LONGEST_WAIT_MS;
		if (wait_us >= 0 && wait_us / 1000 < limit)
			limit = (int) (wait_us / 1000) + 1;
		if (play->exit_code < 0)
			(void) poll(&wait, 1, limit);
	}
}

static void
report(const Play *play)
{
	const OutboxPlayer *player = &play->player;
	const CliOptions *options = play->options;
	int64_t		repeated = outbox_player_repeated(player, play->ahead);

	if (!options->quiet)
		printf("batch %s: %lld events, up to position %lld, in %.1f s%s\n", options->batch_id, (long long) player->done,
			   (long long) player->reached, (double) (cli_now_us() - play->since_us) / 1e6,
			   play->exit_code == CLI_DONE ? "" : ", not to the end");
	if (!options->quiet && repeated > 0)
		printf("%lld of them were sent twice\n", (long long) repeated);
	if (play->exit_code == CLI_DONE)
		return;
	fprintf(stderr, "outbox-replay: ");
	if (player->trouble != OUTBOX_PLAYER_FINE)
		fprintf(stderr, "position %lld: ", (long long) player->trouble_position);
	fprintf(stderr, "%s\n", play->text);
	if (player->tail > 0 || options->behind > 0)
		fprintf(stderr, "outbox-replay: to go on, add --batch-id %s --behind %lld; up to %d events are sent twice then, under the same Nats-Msg-Id\n",
				options->batch_id, (long long) player->reached, outbox_player_ahead(player));
}

int
cli_play(const CliOptions *options, const OutboxEnvelope *envelope, int64_t total)
{
	static Play play;
	Broker	   *broker = broker_create();

	play = (Play) {.options = options, .envelope = envelope, .total = total, .since_us = cli_now_us(), .exit_code = -1};
	if (broker == NULL || !broker_configure(broker, &options->broker))
	{
		fprintf(stderr, "outbox-replay: out of memory\n");
		return CLI_TARGET;
	}
	outbox_player_begin(&play.player, broker, options->rate, OUTBOX_PLAYER_WINDOW);
	play.player.reached = options->behind;
	if (open_source(&play) && connect_first(&play, broker))
		run(&play, broker);
	report(&play);
	free(play.block);
	if (play.source != NULL)
		play.source->close(play.source);
	(void) broker_destroy(broker, EXIT_GRACE_MS);
	return play.exit_code;
}
