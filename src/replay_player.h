/*
 * replay_player.h
 *	  Sends messages to a stream in their order, as fast as a limit, the stream
 *	  and the live traffic beside it allow, and knows how far it has come.
 *
 * Plain C, shared by the replayer in the server and the command outbox-replay.
 * Signals: see broker.h.
 */
#ifndef OUTBOX_REPLAY_PLAYER_H
#define OUTBOX_REPLAY_PLAYER_H

#include <stdbool.h>
#include <stdint.h>

#include "broker.h"
#include "live_traffic.h"

/* Messages in flight at most. */
#define OUTBOX_PLAYER_WINDOW 1024

/* Round trips of which the shortest tells whether there is a queue: a single one may be late for other reasons. */
#define OUTBOX_PLAYER_SAMPLES 8

/* One message in flight. */
typedef struct OutboxPlayed
{
	int64_t		position;
	int64_t		created_at;
	uint64_t	aggregate;
	bool		acked;
	int			next;			/* in flight with the same bucket, as an index + 1; 0: the last one */
} OutboxPlayed;

/* How it ended, or came to stand still. */
typedef enum OutboxPlayerTrouble
{
	OUTBOX_PLAYER_FINE,
	OUTBOX_PLAYER_REFUSED,		/* a message was refused: nothing more is sent */
	OUTBOX_PLAYER_UNKNOWN /* a message is stored or not: it must be sent again, from the position reached on */
} OutboxPlayerTrouble;

typedef struct OutboxPlayer
{
	Broker	   *broker;
	int64_t		rate;			/* messages in a second; 0: no limit */
	int			window;			/* messages in flight at the moment ... */
	int			max_window;		/* ... and at most */
	bool		in_groups;		/* with pauses between them: for the caller to set */
	int			group_left;		/* messages that the group has room for */
	int64_t		group_at;		/* when it began, without the time when none was in flight */
	int64_t		free_at;		/* since when none is, if none is ... */
	int64_t		next_group_at;	/* ... and when the next group may begin */
	double		tokens;			/* of the rate limit */
	int64_t		tokens_at;
	int			base_us;		/* shortest round trip of late, and when that is to be measured anew */
	int			next_base_us;
	int64_t		base_until;
	int64_t		shrunk_at;		/* the window, last */
	int			recent_us[OUTBOX_PLAYER_SAMPLES];	/* the last round trips */
	unsigned int recent_at;
	OutboxPlayed flight[OUTBOX_PLAYER_WINDOW]; /* in the order in which they were sent */
	uint64_t	head;			/* first that isn't known to be stored, as a running number */
	uint64_t	tail;			/* next to send */
	uint64_t	waiting;		/* answers to come */
	int			buckets[4 * OUTBOX_PLAYER_WINDOW]; /* unanswered ones by aggregate, as an index + 1; 0: none */
	int64_t		reached;		/* position up to which all is stored, 0: nothing yet */
	int64_t		reached_time;	/* created_at of the event there */
	int64_t		done;			/* messages up to there */
	int64_t		duplicates;		/* messages that the stream had already */
	OutboxPlayerTrouble trouble;
	int64_t		trouble_position;
	char		text[2 * BROKER_TEXT_SIZE]; /* what the trouble is */
} OutboxPlayer;

extern void outbox_player_begin(OutboxPlayer *player, Broker *broker, int64_t rate, int max_window);

/* Once nothing is in flight: forgets the trouble, and what follows is sent from the position reached on. */
extern void outbox_player_rewind(OutboxPlayer *player);

/*
 * Whether a message of this aggregate may be sent now. *wait_us: when to ask
 * again if it is a matter of time; -1: an answer must come first. now_us: of any
 * clock that doesn't go back.
 */
extern bool outbox_player_may_send(OutboxPlayer *player, uint64_t aggregate, int64_t now_us, int64_t *wait_us);

/* Hands a message over after that. False: not now (offline, buffer full), or there is trouble. */
extern bool outbox_player_send(OutboxPlayer *player, const BrokerMessage *message, int64_t position, int64_t created_at,
							   uint64_t aggregate);

/* Moves bytes and takes answers. */
extern void outbox_player_poll(OutboxPlayer *player, int64_t now_us, OutboxLiveTraffic live);

/* Messages behind the position reached that are stored: after a rewind they are sent again. */
extern int outbox_player_ahead(const OutboxPlayer *player);

/*
 * Messages that were sent twice; ahead: those that runs before have left ahead.
 * They come back as duplicates, unless the stream has forgotten them.
 */
extern int64_t outbox_player_repeated(const OutboxPlayer *player, int64_t ahead);

static inline int
outbox_player_in_flight(const OutboxPlayer *player)
{
	return (int) player->waiting;
}

#endif /* OUTBOX_REPLAY_PLAYER_H */
