/*
 * broker_outcome.c
 *	  What became of each message: answered, denied, timed out, lost. Main thread
 *	  only; the connection's life is broker.c's.
 */
#include <stdlib.h>
#include <string.h>

#include "broker_internal.h"

/* Exchanges the used-up replies for the link's new ones. */
static void
fetch_replies(Broker *broker)
{
	BrokerLink *link = broker->link;
	BrokerReply *empty = broker->replies;
	int			empty_capacity = broker->reply_capacity;

	pthread_mutex_lock(&link->gate);
	broker->replies = link->replies;
	broker->reply_count = link->reply_count;
	broker->reply_capacity = link->reply_capacity;
	link->replies = empty;
	link->reply_count = 0;
	link->reply_capacity = empty_capacity;
	pthread_mutex_unlock(&link->gate);
	broker->replies_at = 0;
}

/*
 * Denies the messages in flight to the subject that the server names. It does so
 * once for each of them: what was said for the first needs no look for the rest.
 */
static void
take_denial(Broker *broker, const char *text)
{
	char		subject[BROKER_TEXT_SIZE];
	bool		cut;
	int			len;

	if (text == NULL)
		return;
	if (broker->denial_begun == broker->flight.begun && strcmp(text, broker->denial) == 0)
		return;
	len = broker_denial_subject(text, subject, &cut);
	if (len == 0 || broker_flight_deny(&broker->flight, subject, len, cut) == 0)
		broker_link_complain(broker->link, text);
	broker->denial_begun = broker->flight.begun;
	strncpy(broker->denial, text, sizeof(broker->denial) - 1);
}

/* Stores the outcome of a reply; false when it came too late for its message. */
static bool
settle_reply(Broker *broker, const BrokerReply *reply, BrokerOutcome *outcome)
{
	uint32_t	slot;
	uint32_t	generation;
	bool		live = !reply->denial &&
		broker_reply_token(broker->link, reply, &slot, &generation) &&
		broker_flight_waits(&broker->flight, slot, generation);

	if (reply->denial)
		take_denial(broker, reply->text);
	else if (live)
	{
		int64_t		sent_us = broker_flight_report(&broker->flight, slot, outcome, BROKER_BAD_REPLY);

		broker_reply_read(broker->link, reply, outcome);
		if (outcome->kind == BROKER_ACKED)
		{
			outcome->round_trip_us = (int) (reply->at_us - sent_us);
			broker->reconnect.pause_us = 0;
			broker->recheck.pause_us = 0;
		}
		else if (outcome->kind == BROKER_NO_RESPONDERS)
			broker_life_suspect_stream(broker);
	}
	broker_trash_add(&broker->trash, reply->msg);
	free(reply->text);
	return live;
}

static int
report_denied(Broker *broker, BrokerOutcome *outcomes, int max)
{
	int			count = 0;

	while (count < max && broker_flight_any_denied(&broker->flight))
		broker_flight_report_denied(&broker->flight, &outcomes[count++]);
	return count;
}

/* What the server has answered. */
int
broker_outcome_report_replies(Broker *broker, BrokerOutcome *outcomes, int max)
{
	int			count = 0;

	while (count < max)
	{
		if (broker->replies_at == broker->reply_count)
		{
			if (broker->link == NULL)
				break;
			fetch_replies(broker);
			if (broker->reply_count == 0)
				break;
		}
		if (settle_reply(broker, &broker->replies[broker->replies_at++], &outcomes[count]))
			count++;
	}
	return count + report_denied(broker, outcomes + count, max - count);
}

/* Those of a connection that has ended are nobody's. */
void
broker_outcome_discard_replies(Broker *broker)
{
	for (int i = broker->replies_at; i < broker->reply_count; i++)
		broker_reply_free(&broker->replies[i]);
	broker->reply_count = 0;
	broker->replies_at = 0;
}

static int
report_lost(Broker *broker, BrokerOutcome *outcomes, int max)
{
	int			count = 0;

	while (count < max && broker_flight_any_lost(&broker->flight))
	{
		broker_flight_report_lost(&broker->flight, &outcomes[count]);
		memcpy(outcomes[count].text, broker->lost_text, BROKER_TEXT_SIZE);
		count++;
	}
	return count;
}

/* What the server has complained of since the publish may be the reason. */
static void
describe_timeout(const Broker *broker, int64_t sent_us, BrokerOutcome *outcome)
{
	int			timeout_ms = broker->settings->config.ack_timeout_ms;
	BrokerLink *link = broker->link;
	char		complaint[BROKER_TEXT_SIZE] = "";

	pthread_mutex_lock(&link->lock);
	if (link->complaint_us >= sent_us)
		memcpy(complaint, link->complaint, sizeof(complaint));
	pthread_mutex_unlock(&link->lock);
	if (complaint[0] != '\0')
		broker_text(outcome->text, "no acknowledgement within %d ms; the server reported: %s",
					timeout_ms, complaint);
	else
		broker_text(outcome->text, "no acknowledgement within %d ms", timeout_ms);
}

/* When the next message times out. */
int64_t
broker_outcome_timeout_us(const Broker *broker)
{
	int64_t		oldest_us = broker_flight_oldest_us(&broker->flight);

	if (oldest_us == INT64_MAX)
		return BROKER_NEVER;
	return oldest_us + (int64_t) broker->settings->config.ack_timeout_ms * 1000;
}

static int
report_timeouts(Broker *broker, int64_t now_us, BrokerOutcome *outcomes, int max)
{
	int			count = 0;

	while (count < max && now_us >= broker_outcome_timeout_us(broker))
	{
		int64_t		sent_us = broker_flight_report_oldest(&broker->flight, &outcomes[count]);

		describe_timeout(broker, sent_us, &outcomes[count]);
		count++;
	}
	return count;
}

/* What will never be answered. */
int
broker_outcome_report(Broker *broker, int64_t now_us, BrokerOutcome *outcomes, int max)
{
	int			count = report_lost(broker, outcomes, max);

	return count + report_timeouts(broker, now_us, outcomes + count, max - count);
}
