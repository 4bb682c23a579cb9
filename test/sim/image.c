/*
 * image.c
 *	  The way into one copy of the code under test, see image.h.
 */
#include "outbox.h"

#include "access/xact.h"
#include "fmgr.h"

#include "clock.h"
#include "database.h"
#include "event.h"
#include "feed.h"
#include "image.h"
#include "operators.h"
#include "ownership.h"
#ifdef SIM_WITH_RELAY
#include "relay.h"
#endif

/* From image.ld. */
extern char sim_data_start[];
extern char sim_data_end[];

extern Datum outbox_tell_relays(PG_FUNCTION_ARGS);

static void
feed_callback(int event, void *arg)
{
	outbox_feed_xact_callback((XactEvent) event, arg);
}

static void
operators_callback(int event, void *arg)
{
	outbox_operators_xact_callback((XactEvent) event, arg);
}

static void
append(OutboxNewEvent *events, int count)
{
	outbox_append_events(events, count, OUTBOX_CONFLICT_ERROR);
}

static OutboxDatabase *
attach(void)
{
	return outbox_database_attach(outbox_database_catalog(false));
}

static int64
next_position(OutboxDatabase *database)
{
	outbox_feed_announce(database);
	return outbox_feed_next_position(database, outbox_database_catalog(false)->sequence);
}

static void
tell_relays(void)
{
	(void) outbox_tell_relays(NULL);
}

const struct SimImage sim_image = {
	.data = sim_data_start,
	.data_end = sim_data_end,
	.install_shmem = outbox_shmem_install,
#ifdef SIM_WITH_RELAY
	.relay_main = OutboxRelayMain,
#endif
	.feed_callback = feed_callback,
	.operators_callback = operators_callback,
	.append = append,
	.attach = attach,
	.next_position = next_position,
	.tell_relays = tell_relays,
	.wake_relays = outbox_shmem_wake_relays,
	.revoke_expired = outbox_ownership_revoke_expired,
	.clock_at = outbox_clock_at,
};
