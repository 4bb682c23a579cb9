/*
 * jsonb_text.h
 *	  The canonical text of a jsonb value.
 */
#ifndef OUTBOX_JSONB_TEXT_H
#define OUTBOX_JSONB_TEXT_H

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

extern void outbox_jsonb_text(StringInfo out, Jsonb *json);

#endif /* OUTBOX_JSONB_TEXT_H */
