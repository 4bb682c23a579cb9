/*
 * operators.h
 *	  The C side of what operators call from SQL.
 */
#ifndef OUTBOX_OPERATORS_H
#define OUTBOX_OPERATORS_H

#include "postgres.h"

#include "access/xact.h"

extern void outbox_operators_xact_callback(XactEvent event, void *arg);

#endif /* OUTBOX_OPERATORS_H */
