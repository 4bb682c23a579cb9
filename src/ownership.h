/*
 * ownership.h
 *	  The members of a database and the slots they own, in shared memory.
 *
 * For relays in this server (membership.c), for the launcher, and for whoever
 * lends the same to relays outside the server.
 */
#ifndef OUTBOX_OWNERSHIP_H
#define OUTBOX_OWNERSHIP_H

#include "outbox.h"

/* A member as itself knows it; its epoch tells it from whoever has the place later. */
typedef struct OutboxMember
{
	OutboxDatabase *database;
	int			place;
	int64		epoch;			/* 0: none */
} OutboxMember;

/* A new life of the extension in this database: whoever was a member is none any more. */
extern void outbox_ownership_reset(OutboxDatabase *database);

/* What the place's process had handed to the broker is not in flight for anybody any more. */
extern void outbox_ownership_clear_claims(OutboxDatabase *database, int place);

/* pid 0: for a process outside the server. False: the place is taken. */
extern bool outbox_ownership_join(OutboxMember *member, OutboxDatabase *database, int place, int pid);
extern void outbox_ownership_leave(OutboxMember *member);
extern bool outbox_ownership_is_valid(const OutboxMember *member);
extern bool outbox_ownership_renew(const OutboxMember *member);

/* Whether outbox_ownership_change() would give back or gain anything. False, too, once revoked. */
extern bool outbox_ownership_wants_change(const OutboxMember *member);

/*
 * Gives back what others are entitled to, claims what is due, and attaches the
 * reader of the feed afresh. The caller has nothing under way for any of its
 * slots, and reads everything again afterwards. *slots: what it owns now. False:
 * revoked.
 */
extern bool outbox_ownership_change(const OutboxMember *member, uint64 *slots);

/*
 * Keeps the membership until the end of the transaction, which records
 * something that only the owner may record. False: it was revoked.
 */
extern bool outbox_ownership_fence(const OutboxMember *member);

/*
 * The member's word that all positions at or below watermark in its slots are
 * terminal and recorded. *common: what holds for all slots; 0: unknown. False:
 * revoked.
 */
extern bool outbox_ownership_say_watermark(const OutboxMember *member, int64 watermark, int64 *common);

/* So much is in the table of watermarks. */
extern void outbox_ownership_note_watermark(OutboxDatabase *database, int64 watermark);

/* Members that let their lease run out lose their slots. Outside of transactions. */
extern void outbox_ownership_revoke_expired(OutboxDatabase *database);

/* Microseconds until a lease may run out; negative: some has. PG_INT64_MAX: no members. */
extern int64 outbox_ownership_time_to_expiry(OutboxDatabase *database);

#endif /* OUTBOX_OWNERSHIP_H */
