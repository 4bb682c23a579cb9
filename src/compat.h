/*
 * compat.h
 *	  Every difference between PostgreSQL versions that outbox meets (15 to 18).
 */
#ifndef OUTBOX_COMPAT_H
#define OUTBOX_COMPAT_H

#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 170000
#define OUTBOX_MY_BACKEND_INDEX MyProcNumber
#define OUTBOX_BACKEND_COUNT (MaxBackends + NUM_AUXILIARY_PROCS)
#else
#define OUTBOX_MY_BACKEND_INDEX (MyProc->pgprocno)
#define OUTBOX_BACKEND_COUNT (MaxBackends + NUM_AUXILIARY_PROCS)
#endif

/* 18 added an argument that says whether to log a lock that can't be had. */
#if PG_VERSION_NUM >= 180000
#define outbox_xact_is_over(xid) ConditionalXactLockTableWait(xid, false)
#else
#define outbox_xact_is_over(xid) ConditionalXactLockTableWait(xid)
#endif

/* 17 renamed the array that process numbers index. */
#define outbox_proc_latch(procno) (&ProcGlobal->allProcs[procno].procLatch)

/* 17 made wait event sets belong to a resource owner instead of a memory context. */
#if PG_VERSION_NUM >= 170000
#define OUTBOX_WAIT_SET_OWNER NULL
#else
#define OUTBOX_WAIT_SET_OWNER TopMemoryContext
#endif

/* 17 lets extensions name what they wait for. name: a literal. */
#if PG_VERSION_NUM >= 170000
#define OUTBOX_WAIT_EVENT(name) \
	({ static uint32 event_ = 0; if (event_ == 0) event_ = WaitEventExtensionNew(name); event_; })
#else
#define OUTBOX_WAIT_EVENT(name) PG_WAIT_EXTENSION
#endif

/* 16 merged the ownership checks. */
#if PG_VERSION_NUM >= 160000
#define outbox_owns_database(dboid, role) object_ownercheck(DatabaseRelationId, dboid, role)
#define outbox_owns_extension(oid, role) object_ownercheck(ExtensionRelationId, oid, role)
#else
#define outbox_owns_database(dboid, role) pg_database_ownercheck(dboid, role)
#define outbox_owns_extension(oid, role) pg_extension_ownercheck(oid, role)
#endif

/* What DROP DATABASE leaves behind when it is interrupted; minor versions before 15.4 don't know it. */
#ifndef DATCONNLIMIT_INVALID_DB
#define DATCONNLIMIT_INVALID_DB -2
#endif

/* 16 added an argument for updates that only summarizing indexes must follow. */
#if PG_VERSION_NUM >= 160000
#define outbox_insert_index_tuples(result, slot, estate) \
	ExecInsertIndexTuples(result, slot, estate, false, false, NULL, NIL, false)
#else
#define outbox_insert_index_tuples(result, slot, estate) \
	ExecInsertIndexTuples(result, slot, estate, false, false, NULL, NIL)
#endif

/* 17 lets an index keep things from one insert to the next: a BRIN index pages of its map, pinned. */
#if PG_VERSION_NUM >= 170000
#define outbox_index_insert_cleanup(index, info) index_insert_cleanup(index, info)
#else
#define outbox_index_insert_cleanup(index, info) ((void) 0)
#endif

/* 16 added an argument for errors that are not raised. */
#if PG_VERSION_NUM >= 160000
#define outbox_qualified_names(text) stringToQualifiedNameList(text, NULL)
#else
#define outbox_qualified_names(text) stringToQualifiedNameList(text)
#endif

/* 18 renamed the attribute of functions that don't return. */
#if PG_VERSION_NUM >= 180000
#define OUTBOX_NORETURN pg_noreturn
#else
#define OUTBOX_NORETURN pg_attribute_noreturn()
#endif

#endif							/* OUTBOX_COMPAT_H */
