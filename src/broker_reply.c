/*
 * broker_reply.c
 *	  The answers: the token that says whose an answer is, the way from the
 *	  library's thread to the main thread, and what an answer means.
 *
 * The library's thread only hands the message over; the main thread reads and
 * destroys it. That is a matter of cost: memory allocated on one thread and
 * freed on another makes both wait for the allocator's lock, and every
 * natsMsg_Destroy() wakes the library's garbage collector if it sleeps, so
 * broker_trash_*() saves up messages and destroys them together.
 */
#include <stdlib.h>
#include <string.h>

#include "ack.h"
#include "broker_internal.h"

/* More unread answers than this are not answers to us. */
#define MAX_UNREAD_REPLIES (1 << 20)

static int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

/* False: not a token of ours. */
static bool
parse_token(const char *token, uint32_t *slot, uint32_t *generation)
{
	uint64_t	value = 0;

	for (int i = 0; i < BROKER_TOKEN_LEN; i++)
	{
		int			digit = hex_digit(token[i]);

		if (digit < 0)
			return false;
		value = value << 4 | (uint64_t) digit;
	}
	if (token[BROKER_TOKEN_LEN] != '\0')
		return false;
	*slot = (uint32_t) (value >> 32);
	*generation = (uint32_t) value;
	return true;
}

void
broker_token_write(char *target, uint32_t slot, uint32_t generation)
{
	static const char digits[] = "0123456789abcdef";
	uint64_t	value = (uint64_t) slot << 32 | generation;

	for (int i = BROKER_TOKEN_LEN - 1; i >= 0; i--)
	{
		target[i] = digits[value & 15];
		value >>= 4;
	}
	target[BROKER_TOKEN_LEN] = '\0';
}

/*
 * Any thread. Leaves a reply for broker_poll(), which owns its message and text
 * from then on. A reply that finds no memory is dropped; its message then times
 * out, which is a true outcome.
 */
void
broker_reply_push(BrokerLink *link, const BrokerReply *reply)
{
	bool		first;
	bool		pushed;

	pthread_mutex_lock(&link->gate);
	first = link->reply_count == 0;
	if (link->reply_count == link->reply_capacity && link->reply_count < MAX_UNREAD_REPLIES)
	{
		int			capacity = link->reply_capacity == 0 ? 1024 : 2 * link->reply_capacity;
		BrokerReply *grown = realloc(link->replies, (size_t) capacity * sizeof(BrokerReply));

		if (grown != NULL)
		{
			link->replies = grown;
			link->reply_capacity = capacity;
		}
	}
	pushed = link->reply_count < link->reply_capacity;
	if (pushed)
		link->replies[link->reply_count++] = *reply;
	pthread_mutex_unlock(&link->gate);

	if (!pushed)
		broker_reply_free(reply);
	else if (first)
		broker_wake(link->post->wake_fd);
}

void
broker_reply_free(const BrokerReply *reply)
{
	natsMsg_Destroy(reply->msg);
	free(reply->text);
}

static void
read_answer(const BrokerLink *link, natsMsg *msg, BrokerOutcome *outcome)
{
	AckReply	ack;

	ack_parse(natsMsg_GetData(msg), (size_t) natsMsg_GetDataLength(msg), &ack);
	if (ack.kind == ACK_ERROR)
	{
		outcome->kind = BROKER_REFUSED;
		outcome->code = ack.error_code;
		outcome->status = ack.status;
		broker_text(outcome->text, "%s", ack.description[0] != '\0' ? ack.description : "JetStream gave no reason");
	}
	else if (ack.kind == ACK_MALFORMED)
	{
		outcome->kind = BROKER_BAD_REPLY;
		broker_text(outcome->text, "the answer is no JetStream acknowledgement");
	}
	else if (strcmp(ack.stream, link->settings->config.stream) != 0)
	{
		outcome->kind = BROKER_BAD_REPLY;
		broker_text(outcome->text, "acknowledged by another stream, \"%s\"", ack.stream);
	}
	else if (outcome->count > 1 && ack.count != (uint64_t) outcome->count)
	{
		/* A server that doesn't know batches stores their messages one by one, each or not. */
		outcome->kind = BROKER_BAD_REPLY;
		broker_text(outcome->text, "acknowledged, but not as a batch of %d messages", outcome->count);
	}
	else
	{
		outcome->kind = BROKER_ACKED;
		outcome->text[0] = '\0';
		outcome->duplicate = ack.duplicate;
		outcome->sequence = ack.sequence;
	}
}

/* Main thread. Finds out whose reply it is; false: nobody's. */
bool
broker_reply_token(const BrokerLink *link, const BrokerReply *reply,
				   uint32_t *slot, uint32_t *generation)
{
	const char *subject;

	if (reply->msg == NULL)
	{
		*slot = reply->slot;
		*generation = reply->generation;
		return true;
	}
	subject = natsMsg_GetSubject(reply->msg);
	return strncmp(subject, link->reply_subject, (size_t) link->prefix_len) == 0 &&
		parse_token(subject + link->prefix_len, slot, generation);
}

/* Main thread. Sets the outcome's kind and what belongs to it. */
void
broker_reply_read(const BrokerLink *link, const BrokerReply *reply, BrokerOutcome *outcome)
{
	if (reply->msg == NULL)
	{
		outcome->kind = BROKER_REFUSED;
		broker_text(outcome->text, "%s", reply->text != NULL ? reply->text : "out of memory");
	}
	else if (natsMsg_GetDataLength(reply->msg) == 0 && natsMsg_IsNoResponders(reply->msg))
	{
		outcome->kind = BROKER_NO_RESPONDERS;
		broker_text(outcome->text, "no stream listens to the subject");
	}
	else
		read_answer(link, reply->msg, outcome);
}

/* Destroys the messages saved up. */
void
broker_trash_empty(BrokerTrash *trash)
{
	for (int i = 0; i < trash->count; i++)
		natsMsg_Destroy(trash->messages[i]);
	trash->count = 0;
	trash->bytes = 0;
}

/* Saves a message up for destruction, as long as the heap isn't too large. */
void
broker_trash_add(BrokerTrash *trash, natsMsg *msg)
{
	if (msg == NULL)
		return;
	trash->messages[trash->count++] = msg;
	trash->bytes += natsMsg_GetDataLength(msg);
	if (trash->count == BROKER_TRASH_SIZE || trash->bytes > BROKER_TRASH_BYTES)
		broker_trash_empty(trash);
}
