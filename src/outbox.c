/*
 * outbox.c
 *	  Loading of the library: settings, hooks, the launcher's registration.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/guc.h"

#include "archive_file.h"
#include "attributes.h"
#include "broker.h"
#include "encode.h"
#include "envelope.h"
#include "feed.h"
#include "give_way.h"
#include "inbox.h"
#include "launcher.h"
#include "operators.h"
#include "session.h"
#include "standing.h"
#include "subscriptions.h"
#include "url.h"

PG_MODULE_MAGIC;

char	   *outbox_nats_url;
char	   *outbox_credentials_file;
char *outbox_login_file;
char	   *outbox_nkey_seed_file;
char	   *outbox_inbox_prefix;
char	   *outbox_tls_ca_file;
char	   *outbox_tls_cert_file;
char	   *outbox_tls_key_file;
char	   *outbox_stream;
bool		outbox_stream_create;
char	   *outbox_subject_template;
int			outbox_envelope;
char	   *outbox_cloudevents_source;
char	   *outbox_traceparent;
char	   *outbox_tracestate;
bool		outbox_guard;
int			outbox_max_in_flight;
int			outbox_ack_timeout;
int			outbox_connect_timeout;
int			outbox_retry_base_delay;
int			outbox_retry_max_delay;
int outbox_max_attempts;
int			outbox_max_pending;
int			outbox_lag_warning;
int outbox_poison_policy;
bool outbox_preserve_aggregate_order;
char *outbox_dead_letter_subject;
int			outbox_retention;
int			outbox_dead_letter_retention;
char *outbox_archive_directory;
char *outbox_archive_url;
int			outbox_archive_compression;
int			outbox_relay_memory;
int outbox_workers;
int outbox_lease_ttl;
int			outbox_max_payload;
int			outbox_max_open_aggregates;
int			outbox_max_databases;
#ifdef OUTBOX_TEST_POINTS
int			outbox_test_feed_size;
#endif

static const struct config_enum_entry poison_policies[] = {
	{"skip", OUTBOX_POISON_SKIP, false},
	{"block", OUTBOX_POISON_BLOCK, false},
	{"park", OUTBOX_POISON_PARK, false},
	{NULL, 0, false},
};

static const struct config_enum_entry compressions[] = {
	{"gzip", ARCHIVE_GZIP, false},
	{"zstd", ARCHIVE_ZSTD, false},
	{NULL, 0, false},
};

static const struct config_enum_entry envelopes[] = {
	{"binary", OUTBOX_ENVELOPE_BINARY, false},
	{"structured", OUTBOX_ENVELOPE_STRUCTURED, false},
	{"bare", OUTBOX_ENVELOPE_BARE, false},
	{NULL, 0, false},
};

static object_access_hook_type previous_object_access_hook = NULL;
static ProcessUtility_hook_type previous_utility_hook = NULL;

void		_PG_init(void);

/* ---------------------------------------------------------------- settings */

static bool
check_subject_template(char **value, void **extra, GucSource source)
{
	const char *complaint = outbox_encode_check_template(*value);

	if (complaint == NULL)
		return true;
	GUC_check_errdetail("The template %s.", complaint);
	GUC_check_errhint("Example: \"outbox.{aggregate_type}.{aggregate_id}.{event_type}\".");
	return false;
}

/* NATS takes other bytes, too, but an acknowledgement that names them can't be compared (ack.c). */
static bool
check_stream(char **value, void **extra, GucSource source)
{
	bool		valid = (*value)[0] != '\0' && strlen(*value) < OUTBOX_TEXT_SIZE && strpbrk(*value, ".*>/\\") == NULL;

	for (const char *c = *value; *c != '\0'; c++)
		valid = valid && *c > ' ' && *c <= '~';
	if (!valid)
		GUC_check_errdetail("A stream has a name of 1 to %d ASCII characters without blanks, dots, wildcards and slashes.",
							OUTBOX_TEXT_SIZE - 1);
	return valid;
}

/* A secret in it is never repeated in a message. */
static bool
check_nats_url(char **value, void **extra, GucSource source)
{
	if (outbox_url_check_list(*value))
		return true;
	/* The standard message would show the value. */
	GUC_check_errmsg("invalid value for parameter \"outbox.nats_url\"");
	GUC_check_errdetail("It is a comma-separated list of URLs without white space, each starting with \"nats://\" or \"tls://\".");
	return false;
}

/* A subject to publish to: literal tokens only. */
static bool
check_dead_letter_subject(char **value, void **extra, GucSource source)
{
	if ((*value)[0] == '\0' || (strchr(*value, '{') == NULL && outbox_encode_check_template(*value) == NULL))
		return true;
	GUC_check_errdetail("It is a NATS subject without blanks, wildcards and empty tokens.");
	return false;
}

/* As a subject, but it may begin with what is reserved for replies. */
static bool
check_inbox_prefix(char **value, void **extra, GucSource source)
{
	char	   *subject = psprintf("prefix.%s", *value);
	const char *complaint = (*value)[0] == '\0' ? NULL : outbox_encode_check_subject(subject);

	pfree(subject);
	if (complaint == NULL && strlen(*value) <= BROKER_MAX_INBOX_PREFIX)
		return true;
	if (complaint != NULL)
		GUC_check_errdetail("The prefix %s.", complaint);
	else
		GUC_check_errdetail("It has at most %d bytes.", BROKER_MAX_INBOX_PREFIX);
	return false;
}

static bool
check_source(char **value, void **extra, GucSource source)
{
	if (strlen(*value) < OUTBOX_TEXT_SIZE)
		return true;
	GUC_check_errdetail("It has at most %d bytes.", OUTBOX_TEXT_SIZE - 1);
	return false;
}

static bool
check_archive_directory(char **value, void **extra, GucSource source)
{
	if ((*value)[0] == '\0' || (*value)[0] == '/')
		return true;
	GUC_check_errdetail("It is an absolute path.");
	return false;
}

static bool
check_archive_url(char **value, void **extra, GucSource source)
{
	if ((*value)[0] == '\0' || outbox_url_check_archive(*value))
		return true;
	/* The standard message would show the value. */
	GUC_check_errmsg("invalid value for parameter \"outbox.archive_url\"");
	GUC_check_errdetail("It is like \"http://user:password@host:8123/database/table\", percent-encoded; names of letters, digits and underscores.");
	return false;
}

static bool
check_traceparent(char **value, void **extra, GucSource source)
{
	const char *complaint = (*value)[0] == '\0' ? NULL : outbox_attribute_check_traceparent(*value);

	if (complaint != NULL)
		GUC_check_errdetail("The value %s.", complaint);
	return complaint == NULL;
}

static bool
check_tracestate(char **value, void **extra, GucSource source)
{
	const char *complaint = (*value)[0] == '\0' ? NULL : outbox_encode_check_header_value(*value);

	if (complaint == NULL)
		complaint = outbox_attribute_check_tracestate(*value);
	if (complaint != NULL)
		GUC_check_errdetail("The value %s.", complaint);
	return complaint == NULL;
}

static void
define_connection_settings(void)
{
	int			secret = GUC_SUPERUSER_ONLY;

	DefineCustomStringVariable("outbox.nats_url", "NATS servers to publish to.",
							   "Comma-separated nats:// or tls:// URLs, at most 32; they may contain user and password, or a token, percent-encoded. "
							   "A URL without takes those of the first that has some; one tls:// wants TLS of all.",
							   &outbox_nats_url, "nats://127.0.0.1:4222", PGC_SUSET, secret, check_nats_url, NULL, NULL);
	DefineCustomStringVariable("outbox.login_file", "File with \"user:password\" or a token, for URLs that contain none.",
							   "Its first line, as it is, not percent-encoded. Mode 0600, or 0640 if root owns it. Read again at every connection attempt.",
							   &outbox_login_file, "", PGC_SUSET, secret, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.credentials_file", "NATS credentials file (.creds) with user JWT and key.",
							   "Mode 0600, or 0640 if root owns it. Read again at every connection attempt.",
							   &outbox_credentials_file, "", PGC_SUSET, secret, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.nkey_seed_file", "File with the seed of the NATS user's NKey.",
							   "Instead of outbox.credentials_file. Mode 0600, or 0640 if root owns it. Read again at every connection attempt.",
							   &outbox_nkey_seed_file, "", PGC_SUSET, secret, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.inbox_prefix", "Beginning of the subjects that acknowledgements come to.",
							   "The NATS user must be permitted to subscribe to what begins so. At most 64 bytes. Empty: \"_INBOX\".",
							   &outbox_inbox_prefix, "", PGC_SUSET, 0, check_inbox_prefix, NULL, NULL);
	DefineCustomStringVariable("outbox.tls_ca_file", "Certificates of authorities that sign the NATS server's certificate.",
							   "Empty: the system's.",
							   &outbox_tls_ca_file, "", PGC_SUSET, secret, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.tls_cert_file", "Client certificate for the NATS server.", NULL,
							   &outbox_tls_cert_file, "", PGC_SUSET, secret, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.tls_key_file", "Private key of the client certificate.", "Mode 0600, or 0640 if root owns it.",
							   &outbox_tls_key_file, "", PGC_SUSET, secret, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.connect_timeout", "Time limit of one attempt to connect to NATS.", NULL,
							&outbox_connect_timeout, 2000, 100, 60000, PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.stream", "JetStream stream that events must be stored in.",
							   "An acknowledgement by another stream does not count.",
							   &outbox_stream, "OUTBOX", PGC_SUSET, 0, check_stream, NULL, NULL);
	DefineCustomBoolVariable("outbox.stream_create", "Creates the stream when it is missing.",
							 "With file storage, the subjects of the template, a duplicate window of 2 minutes, and atomic batches and times to live of messages where the server has them.",
							 &outbox_stream_create, true, PGC_SUSET, 0, NULL, NULL, NULL);
}

static void
define_envelope_settings(void)
{
	DefineCustomStringVariable("outbox.subject_template", "Subject of events that were enqueued without one.",
							   "A literal token, then literal tokens and {aggregate_type}, {aggregate_id}, {event_type}, whose values are percent-encoded.",
							   &outbox_subject_template, "outbox.{aggregate_type}.{aggregate_id}.{event_type}",
							   PGC_SUSET, 0, check_subject_template, NULL, NULL);
	DefineCustomEnumVariable("outbox.envelope", "How events are packed: as CloudEvents, or not at all.",
							 "binary: attributes are headers; structured: one JSON object; bare: payload and own headers only.",
							 &outbox_envelope, OUTBOX_ENVELOPE_BINARY, envelopes, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.cloudevents_source", "CloudEvents attribute \"source\" of all events.",
							   "Empty: \"/outbox/\" and the database's name.",
							   &outbox_cloudevents_source, "", PGC_SUSET, 0, check_source, NULL, NULL);
	DefineCustomStringVariable("outbox.traceparent", "W3C trace context of the session's next events.",
							   "Becomes the header \"traceparent\" of events enqueued without one.",
							   &outbox_traceparent, "", PGC_USERSET, 0, check_traceparent, NULL, NULL);
	DefineCustomStringVariable("outbox.tracestate", "W3C trace state that goes with outbox.traceparent.", NULL,
							   &outbox_tracestate, "", PGC_USERSET, 0, check_tracestate, NULL, NULL);
}

static void
define_enqueue_settings(void)
{
	DefineCustomIntVariable("outbox.max_pending", "Events pending in the database, above which enqueueing fails.",
							"0: no limit. What relays haven't read yet is counted by position, which is an upper bound.",
							&outbox_max_pending, 0, 0, INT_MAX, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.guard", "Heeds outbox.guard(): changes of guarded tables need an event.",
							 "off: what the session changes meanwhile needs none. For others than superusers by GRANT SET ON PARAMETER.",
							 &outbox_guard, true, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_payload", "Largest event that may be enqueued, payload and headers together.",
							"Keep it below the max_payload of the NATS server.",
							&outbox_max_payload, 1000000, 1024, 64 * 1024 * 1024, PGC_SUSET, GUC_UNIT_BYTE,
							NULL, NULL, NULL);
}

static void
define_relay_settings(void)
{
	DefineCustomIntVariable("outbox.max_in_flight", "Events sent to NATS and not yet acknowledged, at most.", NULL,
							&outbox_max_in_flight, 1024, 1, 8192, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.ack_timeout", "Time after which an event without acknowledgement is sent again.",
							"Make it longer than the slowest acknowledgement.",
							&outbox_ack_timeout, 5000, 100, 3600000, PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.retry_base_delay", "Delay before the first retry; doubled with each further one.", NULL,
							&outbox_retry_base_delay, 100, 1, 3600000, PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.retry_max_delay", "Longest delay between retries and between attempts to connect.", NULL,
							&outbox_retry_max_delay, 30000, 1, 86400000, PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_attempts", "Attempts after which an event that is refused itself becomes a dead letter.",
							"What fails because of the broker, the stream or the subject uses up none.",
							&outbox_max_attempts, 10, 1, INT_MAX, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.poison_policy", "What becomes of an aggregate's later events when one has failed for good.",
							 "skip: they go on; block: they wait for an operator; park: they become dead letters, too.",
							 &outbox_poison_policy, OUTBOX_POISON_SKIP, poison_policies, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.preserve_aggregate_order", "Publishes the events of an aggregate one after the other.",
							 "off: by priority and arrival only; a failing event is overtaken.",
							 &outbox_preserve_aggregate_order, true, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.dead_letter_subject", "Subject on which each dead letter is announced.",
							   "A plain NATS message without acknowledgement; empty: none.",
							   &outbox_dead_letter_subject, "", PGC_SUSET, 0, check_dead_letter_subject, NULL, NULL);
	DefineCustomIntVariable("outbox.lag_warning", "Time that an event may wait before the relay logs a warning.",
							"Also what outbox.health() calls late. An event with not_before waits from then on. -1: no warning; 5 minutes for health().",
							&outbox_lag_warning, 300000, -1, INT_MAX, PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.relay_memory", "Memory for events that a relay has read and not yet published.",
							"One event more than that may be held.",
							&outbox_relay_memory, 64 * 1024, 1024, MAX_KILOBYTES, PGC_SUSET, GUC_UNIT_KB,
							NULL, NULL, NULL);
}

static void
define_retention_settings(void)
{
	DefineCustomIntVariable("outbox.retention", "Time for which published and discarded events are kept.",
							"From their publication on; they go by whole ranges, so somewhat later. 0: as soon as may be; -1: kept for ever.",
							&outbox_retention, 7 * 24 * 3600, -1, INT_MAX, PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.dead_letter_retention", "Time for which dead letters are kept whose aggregate went on.",
							"Those that hold up their aggregate stay. 0: no longer than published events; -1: for ever.",
							&outbox_dead_letter_retention, -1, -1, INT_MAX, PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
}

static void
define_archive_settings(void)
{
	DefineCustomStringVariable("outbox.archive_directory", "Directory to which events are written before they are removed.",
							   "Files of JSON lines with a manifest; an absolute path. Empty: none.",
							   &outbox_archive_directory, "", PGC_SUSET, GUC_SUPERUSER_ONLY, check_archive_directory, NULL, NULL);
	DefineCustomStringVariable("outbox.archive_url", "ClickHouse table to which events are sent before they are removed.",
							   "http[s]://[user[:password]@]host[:port]/[database/]table. Empty: none.",
							   &outbox_archive_url, "", PGC_SUSET, GUC_SUPERUSER_ONLY, check_archive_url, NULL, NULL);
	DefineCustomEnumVariable("outbox.archive_compression", "Compression of the files in outbox.archive_directory.", NULL,
							 &outbox_archive_compression, ARCHIVE_GZIP, compressions, PGC_SUSET, 0, NULL, NULL, NULL);
}

/* Sizes of shared memory are fixed while the server runs; the others follow a reload. */
static void
define_server_settings(void)
{
	DefineCustomIntVariable("outbox.workers", "Relays of this server per database.",
							"They share the aggregates; each takes one of max_worker_processes. 0: none, as for a server whose events others publish.",
							&outbox_workers, 1, 0, OUTBOX_SERVER_RELAYS, PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.lease_ttl", "Time after which others take over from a relay that stands still.",
							"One that ends is replaced at once.",
							&outbox_lease_ttl, 10000, 1000, 600000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_open_aggregates", "Aggregates with events in open transactions, at most.",
							"For all databases together; each takes 40 bytes of shared memory once used.",
							&outbox_max_open_aggregates, 1000000, 1000, 100000000, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_databases", "Databases with the extension, at most.",
							"Each takes about 310 kB of shared memory.",
							&outbox_max_databases, 32, 1, 1024, PGC_POSTMASTER, 0, NULL, NULL, NULL);
#ifdef OUTBOX_TEST_POINTS
	DefineCustomIntVariable("outbox.test_feed_size", "Ring size, for tests.", NULL,
							&outbox_test_feed_size, OUTBOX_FEED_SIZE, 1, OUTBOX_FEED_SIZE, PGC_POSTMASTER, 0,
							NULL, NULL, NULL);
#endif
}

/* ------------------------------------------------------------------- hooks */

/* An extension was created here (perhaps ours), or is being dropped. */
static void
object_access(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (previous_object_access_hook)
		previous_object_access_hook(access, class_id, object_id, sub_id, arg);
	if (class_id != ExtensionRelationId || IsBinaryUpgrade)
		return;
	if (access == OAT_POST_CREATE)
		outbox_feed_extension_changes(false);
	else if (access == OAT_DROP)
	{
		char	   *name = get_extension_name(object_id);

		if (name != NULL && strcmp(name, OUTBOX_EXTENSION) == 0)
			outbox_feed_extension_changes(true);
	}
}

static bool
ends_prepared_transaction(Node *statement)
{
	TransactionStmtKind kind;

	if (!IsA(statement, TransactionStmt))
		return false;
	kind = ((TransactionStmt *) statement)->kind;
	return kind == TRANS_STMT_COMMIT_PREPARED || kind == TRANS_STMT_ROLLBACK_PREPARED;
}

/* The functions name their objects with the schema, so ALTER EXTENSION ... SET SCHEMA is refused; this is the other way. */
static void
refuse_rename(Node *statement)
{
	RenameStmt *rename = (RenameStmt *) statement;

	if (IsA(statement, RenameStmt) && rename->renameType == OBJECT_SCHEMA && strcmp(rename->subname, OUTBOX_SCHEMA) == 0 &&
		OidIsValid(get_extension_oid(OUTBOX_EXTENSION, true)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the schema of the extension \"%s\" can't be renamed", OUTBOX_EXTENSION)));
}

static void
utility(PlannedStmt *statement, const char *query, bool read_only_tree, ProcessUtilityContext context,
		ParamListInfo params, QueryEnvironment *environment, DestReceiver *receiver, QueryCompletion *completion)
{
	volatile bool ends_prepared = ends_prepared_transaction(statement->utilityStmt);
	Oid			dboid;

	refuse_rename(statement->utilityStmt);
	dboid = outbox_give_way_before(statement->utilityStmt);
	PG_TRY();
	{
		if (previous_utility_hook)
			previous_utility_hook(statement, query, read_only_tree, context, params, environment, receiver, completion);
		else
			standard_ProcessUtility(statement, query, read_only_tree, context, params, environment, receiver, completion);
	}
	PG_CATCH();
	{
		outbox_give_way_after(dboid);
		PG_RE_THROW();
	}
	PG_END_TRY();

	/* A dropped database is still in pg_database until the commit: no relay shall look for it. */
	if (!IsA(statement->utilityStmt, DropdbStmt))
		outbox_give_way_after(dboid);
	outbox_give_way_note_settings(statement->utilityStmt);
	outbox_standing_note_command(statement->utilityStmt);
	/* The session that ends a prepared transaction pushes nothing: it can only wake the relay. */
	if (ends_prepared)
	{
		OutboxDatabase *database = outbox_shmem_find(MyDatabaseId);

		if (database != NULL)
			outbox_shmem_wake_relays(database);
	}
}

void
_PG_init(void)
{
	define_connection_settings();
	define_envelope_settings();
	define_enqueue_settings();
	define_relay_settings();
	define_retention_settings();
	define_archive_settings();
	if (!process_shared_preload_libraries_in_progress)
	{
		/* Loaded by a session: the settings that size shared memory don't exist. */
		MarkGUCPrefixReserved("outbox");
		return;
	}
	define_server_settings();
	MarkGUCPrefixReserved("outbox");

	outbox_shmem_install();
	RegisterXactCallback(outbox_feed_xact_callback, NULL);
	RegisterXactCallback(outbox_operators_xact_callback, NULL);
	RegisterXactCallback(outbox_inbox_xact_callback, NULL);
	RegisterXactCallback(outbox_subscriptions_xact_callback, NULL);
	RegisterXactCallback(outbox_give_way_xact_callback, NULL);
	RegisterXactCallback(outbox_session_xact_callback, NULL);
	RegisterXactCallback(outbox_standing_xact_callback, NULL);
	RegisterSubXactCallback(outbox_session_subxact_callback, NULL);
	previous_object_access_hook = object_access_hook;
	object_access_hook = object_access;
	previous_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = utility;
	if (!IsBinaryUpgrade)
		outbox_launcher_register();
}
