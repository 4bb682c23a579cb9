/*
 * reply_fuzz.c
 *	  What src/broker_reply.c makes of a message on the reply subject: whose
 *	  answer it is, and what it means. The parser of its data has a target of
 *	  its own (ack_fuzz.c).
 *
 * Input: the configured stream, the subject behind the prefix, the value of the
 * header "Status" (empty: none), with NULs between, and the data.
 */
#include <string.h>

#include "ack.h"
#include "fake_nats.h"
#include "fuzz.h"

/* Twelve lower-case hexadecimal digits, or nobody's. */
static void
check_token(const BrokerLink *link, const BrokerReply *reply, const char *token)
{
	uint32_t	slot;
	uint32_t	generation;
	char		written[BROKER_TOKEN_LEN + 1];
	bool		valid = strlen(token) == BROKER_TOKEN_LEN && strspn(token, "0123456789abcdef") == BROKER_TOKEN_LEN;

	property(broker_reply_token(link, reply, &slot, &generation) == valid);
	if (!valid)
		return;
	property(slot < BROKER_MAX_SLOTS);
	broker_token_write(written, slot, generation);
	property(strcmp(written, token) == 0);
}

static void
check_text(const char *text)
{
	size_t		length = strnlen(text, BROKER_TEXT_SIZE);

	property(length > 0 && length < BROKER_TEXT_SIZE);
	for (size_t i = 0; i < length; i++)
		property(text[i] >= ' ' && text[i] <= '~');
}

static void
check_meaning(const BrokerLink *link, const BrokerReply *reply, const char *status)
{
	const char *data = natsMsg_GetData(reply->msg);
	int			length = natsMsg_GetDataLength(reply->msg);
	BrokerOutcome outcome;
	AckReply	ack;
	bool		acked;

	memset(&outcome, 0, sizeof(outcome));
	broker_reply_read(link, reply, &outcome);
	ack_parse(data, (size_t) length, &ack);

	/* published is what its own stream says is published, nothing else */
	acked = ack.kind == ACK_POSITIVE && strcmp(ack.stream, link->settings->config.stream) == 0;
	property((outcome.kind == BROKER_ACKED) == acked);
	property((outcome.kind == BROKER_REFUSED) == (ack.kind == ACK_ERROR));
	property((outcome.kind == BROKER_NO_RESPONDERS) == (length == 0 && strncmp(status, "503", 3) == 0));
	property(outcome.kind != BROKER_TIMED_OUT && outcome.kind != BROKER_LOST);
	if (acked)
		property(outcome.sequence == ack.sequence && outcome.duplicate == ack.duplicate);
	else
		check_text(outcome.text);
	property(outcome.code == (ack.kind == ACK_ERROR ? ack.error_code : 0));
}

/* What the library's thread pushes is what the main thread finds. */
static void
check_queue(BrokerLink *link, const BrokerReply *reply)
{
	broker_reply_push(link, reply);
	property(link->reply_count == 1 && link->replies[0].msg == reply->msg);
	broker_reply_free(&link->replies[0]);
}

/* The pump's word instead of a message: the library refused it, and said words. */
static void
check_refusal(const BrokerLink *link, const char *words)
{
	BrokerReply reply = {.text = fuzz_copy(words), .slot = 1, .generation = 2};
	BrokerOutcome outcome = {0};
	uint32_t	slot;
	uint32_t	generation;

	property(broker_reply_token(link, &reply, &slot, &generation) && slot == 1 && generation == 2);
	broker_reply_read(link, &reply, &outcome);
	property(outcome.kind == BROKER_REFUSED && outcome.code == 0);
	property(strlen(outcome.text) <= strlen(words));
	broker_reply_free(&reply);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	char	   *stream = fuzz_take_text(&input);
	char	   *token = fuzz_take_text(&input);
	char	   *status = fuzz_take_text(&input);
	size_t		length = input.left;
	char	   *body = fuzz_take_bytes(&input, length);
	BrokerPost	post = {.wake_fd = -1};
	BrokerSettings settings = {.config.stream = stream};
	BrokerLink *link = fake_nats_link(NULL, &settings, 0);
	BrokerReply reply = {0};
	char	   *subject = malloc((size_t) link->prefix_len + strlen(token) + 1);

	link->post = &post;
	memcpy(subject, link->reply_subject, (size_t) link->prefix_len);
	strcpy(subject + link->prefix_len, token);
	property(natsMsg_Create(&reply.msg, subject, NULL, body, (int) length) == NATS_OK);
	if (status[0] != '\0')
		property(natsMsgHeader_Set(reply.msg, "Status", status) == NATS_OK);

	check_token(link, &reply, token);
	check_meaning(link, &reply, status);
	check_queue(link, &reply);
	check_refusal(link, status);

	fake_nats_link_free(link);
	free(subject);
	free(body);
	free(status);
	free(token);
	free(stream);
	return 0;
}
