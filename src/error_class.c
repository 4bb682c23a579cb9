/*
 * error_class.c
 *	  The one table of errors: by kind of outcome and by JetStream's err_code,
 *	  never by text.
 *
 * The codes are those of nats-server's server/errors.json (2.9 to 2.15). Only
 * what can answer a publish is listed. Knows neither PostgreSQL nor NATS.
 */
#include "error_class.h"

#include <stddef.h>

static const struct
{
	int			code;
	OutboxErrorClass class;
} table[] = {
	/*
	 * A message with this id is on its way to the cluster's other servers, from an earlier attempt (2.12 and
	 * newer): stored or not, nobody knows until they have answered.
	 */
	{10158, OUTBOX_ERROR_UNKNOWN},

	{10002, OUTBOX_ERROR_BROKER}, /* resource limits exceeded for account */
	{10004, OUTBOX_ERROR_BROKER}, /* incomplete results */
	{10005, OUTBOX_ERROR_BROKER}, /* no suitable peers */
	{10006, OUTBOX_ERROR_BROKER}, /* not in clustered mode */
	{10007, OUTBOX_ERROR_BROKER}, /* cluster not assigned to this server */
	{10008, OUTBOX_ERROR_BROKER}, /* JetStream temporarily unavailable */
	{10009, OUTBOX_ERROR_BROKER}, /* cluster can't handle the request: no leader */
	{10023, OUTBOX_ERROR_BROKER}, /* insufficient resources */
	{10028, OUTBOX_ERROR_BROKER}, /* insufficient memory */
	{10035, OUTBOX_ERROR_BROKER}, /* account not found */
	{10039, OUTBOX_ERROR_BROKER}, /* JetStream not enabled for the account */
	{10041, OUTBOX_ERROR_BROKER}, /* RAFT */
	{10047, OUTBOX_ERROR_BROKER}, /* insufficient storage */
	{10076, OUTBOX_ERROR_BROKER}, /* JetStream not enabled */

	{10051, OUTBOX_ERROR_STREAM}, /* general stream failure */
	{10053, OUTBOX_ERROR_STREAM}, /* stream limits */
	{10059, OUTBOX_ERROR_STREAM}, /* stream not found */
	{10060, OUTBOX_ERROR_STREAM}, /* another stream than expected takes the subject */
	{10063, OUTBOX_ERROR_STREAM}, /* expected stream sequence does not match */
	{10077, OUTBOX_ERROR_STREAM}, /* could not be stored: full, of all or of one subject */
	{10096, OUTBOX_ERROR_STREAM}, /* stream not valid */
	{10109, OUTBOX_ERROR_STREAM}, /* sealed */
	{10118, OUTBOX_ERROR_STREAM}, /* offline */
	{10167, OUTBOX_ERROR_STREAM}, /* too many requests */
	{10188, OUTBOX_ERROR_STREAM}, /* message schedules are disabled, since we looked */
	{10190, OUTBOX_ERROR_STREAM}, /* target of a schedule: another stream than this takes the subject, or none */

	{10054, OUTBOX_ERROR_PERMANENT}, /* larger than the stream's max_msg_size */
	{10070, OUTBOX_ERROR_PERMANENT}, /* wrong last message id */
	{10071, OUTBOX_ERROR_PERMANENT}, /* wrong last sequence */
	{10097, OUTBOX_ERROR_PERMANENT}, /* headers larger than 64 kB */
	{10111, OUTBOX_ERROR_PERMANENT}, /* rollup not permitted */
	{10164, OUTBOX_ERROR_PERMANENT}, /* wrong last sequence */
	{10165, OUTBOX_ERROR_PERMANENT}, /* invalid per-message TTL */
	{10166, OUTBOX_ERROR_PERMANENT}, /* per-message TTL is disabled */
	{10189, OUTBOX_ERROR_PERMANENT}, /* invalid schedule */
	{10191, OUTBOX_ERROR_PERMANENT}, /* invalid TTL of a schedule */
};

/*
 * A code that isn't listed: what the server calls its own failure (5xx) must
 * use up nobody's attempts, anything else is held against the event.
 */
static OutboxErrorClass
class_of_refusal(int code, int status)
{
	if (code == 0)
		return OUTBOX_ERROR_PERMANENT;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
	{
		if (table[i].code == code)
			return table[i].class;
	}
	return status >= 500 ? OUTBOX_ERROR_STREAM : OUTBOX_ERROR_TRANSIENT;
}

OutboxErrorClass
outbox_error_class(BrokerOutcomeKind kind, int code, int status)
{
	switch (kind)
	{
		case BROKER_ACKED:
			return OUTBOX_ERROR_NONE;
		case BROKER_REFUSED:
			return class_of_refusal(code, status);
		case BROKER_NO_RESPONDERS:
		case BROKER_DENIED:
			return OUTBOX_ERROR_STREAM;
		case BROKER_TIMED_OUT:
		case BROKER_LOST:
		case BROKER_BAD_REPLY:
			return OUTBOX_ERROR_UNKNOWN;
	}
	return OUTBOX_ERROR_UNKNOWN;
}

const char *
outbox_error_class_name(OutboxErrorClass class)
{
	static const char *const names[OUTBOX_ERROR_CLASSES] = {
		"none", "unknown", "broker", "stream", "event, transient", "event, permanent"};

	return names[class];
}

const char *
outbox_error_source(BrokerOutcomeKind kind, int code)
{
	switch (kind)
	{
		case BROKER_REFUSED:
			return code == 0 ? "NATS client" : "JetStream";
		case BROKER_NO_RESPONDERS:
		case BROKER_DENIED:
			return "NATS server";
		default:
			return "outbox relay";
	}
}
