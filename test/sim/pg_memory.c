/*
 * pg_memory.c
 *	  Memory contexts, and the small things of PostgreSQL that live in them:
 *	  strings, lists, arrays, a hash table.
 */
#include "pg.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "port/pg_bswap.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include <stdarg.h>

MemoryContext CurrentMemoryContext;
MemoryContext TopMemoryContext;
pg_prng_state pg_global_prng_state;

typedef struct Chunk
{
	struct Chunk *next;
	struct Chunk *previous;
	struct SimContext *context;
	Size		size;
} Chunk;

typedef struct SimContext
{
	MemoryContextData base;
	struct SimContext *next;	/* of the process */
	Chunk	   *chunks;
} SimContext;

/* ---------- contexts ---------- */

static MemoryContext
new_context(PgProcess *pg)
{
	SimContext *context = calloc(1, sizeof(SimContext));

	context->base.type = T_AllocSetContext;
	context->next = pg->contexts;
	pg->contexts = context;
	return &context->base;
}

void
sim_memory_start(PgProcess *pg)
{
	pg->globals.top_context = new_context(pg);
	pg->globals.current_context = pg->globals.top_context;
	pg->transaction_context = new_context(pg);
}

void
sim_memory_forget(PgProcess *pg)
{
	while (pg->contexts != NULL)
	{
		SimContext *next = pg->contexts->next;

		MemoryContextReset(&pg->contexts->base);
		free(pg->contexts);
		pg->contexts = next;
	}
}

MemoryContext
AllocSetContextCreateInternal(MemoryContext parent, const char *name, Size minContextSize,
							  Size initBlockSize, Size maxBlockSize)
{
	return new_context(sim_self->pg);
}

void
MemoryContextReset(MemoryContext context)
{
	SimContext *self = (SimContext *) context;

	while (self->chunks != NULL)
	{
		Chunk	   *next = self->chunks->next;

		free(self->chunks);
		self->chunks = next;
	}
}

void *
MemoryContextAlloc(MemoryContext context, Size size)
{
	SimContext *self = (SimContext *) context;
	Chunk	   *chunk = malloc(sizeof(Chunk) + size);

	*chunk = (Chunk) {self->chunks, NULL, self, size};
	if (chunk->next != NULL)
		chunk->next->previous = chunk;
	self->chunks = chunk;
	return chunk + 1;
}

void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	return memset(MemoryContextAlloc(context, size), 0, size);
}

void *
palloc(Size size)
{
	return MemoryContextAlloc(CurrentMemoryContext, size);
}

void *
palloc0(Size size)
{
	return MemoryContextAllocZero(CurrentMemoryContext, size);
}

void *
palloc_extended(Size size, int flags)
{
	return palloc(size);
}

void
pfree(void *pointer)
{
	Chunk	   *chunk = (Chunk *) pointer - 1;

	if (chunk->next != NULL)
		chunk->next->previous = chunk->previous;
	if (chunk->previous != NULL)
		chunk->previous->next = chunk->next;
	else
		chunk->context->chunks = chunk->next;
	free(chunk);
}

void *
repalloc(void *pointer, Size size)
{
	Chunk	   *chunk = (Chunk *) pointer - 1;
	void	   *larger = MemoryContextAlloc(&chunk->context->base, size);

	memcpy(larger, pointer, Min(size, chunk->size));
	pfree(pointer);
	return larger;
}

void *
repalloc_huge(void *pointer, Size size)
{
	return repalloc(pointer, size);
}

/* ---------- strings ---------- */

char *
MemoryContextStrdup(MemoryContext context, const char *string)
{
	return strcpy(MemoryContextAlloc(context, strlen(string) + 1), string);
}

char *
pstrdup(const char *in)
{
	return MemoryContextStrdup(CurrentMemoryContext, in);
}

#undef vsnprintf
#undef snprintf

char *
psprintf(const char *fmt, ...)
{
	char		text[512];
	va_list		arguments;

	va_start(arguments, fmt);
	vsnprintf(text, sizeof(text), fmt, arguments);
	va_end(arguments);
	return pstrdup(text);
}

int
pg_snprintf(char *str, size_t count, const char *fmt, ...)
{
	va_list		arguments;
	int			result;

	va_start(arguments, fmt);
	result = vsnprintf(str, count, fmt, arguments);
	va_end(arguments);
	return result;
}

#ifndef HAVE_STRLCPY
size_t
strlcpy(char *dst, const char *src, size_t siz)
{
	size_t		length = strlen(src);

	if (siz > 0)
	{
		memcpy(dst, src, Min(length, siz - 1));
		dst[Min(length, siz - 1)] = '\0';
	}
	return length;
}
#endif

void
initStringInfo(StringInfo str)
{
	str->maxlen = 1024;
	str->data = palloc0(str->maxlen);
	str->len = 0;
}

/* Announcements of dead letters: nobody reads them here. */
void
appendStringInfo(StringInfo str, const char *fmt, ...)
{
}

void
appendStringInfoString(StringInfo str, const char *s)
{
}

#undef appendStringInfoChar
void
appendStringInfoChar(StringInfo str, char ch)
{
}

void
escape_json(StringInfo buf, const char *str)
{
}

text *
cstring_to_text(const char *s)
{
	int			length = (int) strlen(s);
	text	   *result = palloc(length + VARHDRSZ);

	SET_VARSIZE(result, length + VARHDRSZ);
	memcpy(VARDATA(result), s, length);
	return result;
}

char *
text_to_cstring(const text *t)
{
	int			length = VARSIZE_ANY_EXHDR(t);
	char	   *result = palloc(length + 1);

	memcpy(result, VARDATA_ANY(t), length);
	result[length] = '\0';
	return result;
}

struct varlena *
pg_detoast_datum_packed(struct varlena *datum)
{
	return datum;
}

uint64
hash_bytes_extended(const unsigned char *k, int keylen, uint64 seed)
{
	uint64		hash = seed ^ UINT64CONST(0xCBF29CE484222325);

	for (int i = 0; i < keylen; i++)
		hash = (hash ^ k[i]) * UINT64CONST(0x100000001B3);
	hash ^= hash >> 29;
	return hash * UINT64CONST(0xBF58476D1CE4E5B9) ^ hash >> 32;
}

bool
pg_strong_random(void *buf, size_t len)
{
	for (size_t i = 0; i < len; i++)
		((uint8 *) buf)[i] = (uint8) sim_random();
	return true;
}

double
pg_prng_double(pg_prng_state *state)
{
	return (double) (sim_random() >> 11) / (double) (UINT64CONST(1) << 53);
}

/* ---------- lists and arrays ---------- */

List *
lcons(void *datum, List *list)
{
	List	   *longer = palloc0(sizeof(List));
	int			length = list == NIL ? 0 : list->length;

	longer->type = T_List;
	longer->length = longer->max_length = length + 1;
	longer->elements = palloc(sizeof(ListCell) * (length + 1));
	longer->elements[0].ptr_value = datum;
	if (length > 0)
		memcpy(&longer->elements[1], list->elements, sizeof(ListCell) * length);
	return longer;
}

/* Left to the end of the transaction. */
void
list_free_deep(List *list)
{
}

/* An array is its number of elements and then the elements, as they were given. */
ArrayType *
construct_array(Datum *elems, int nelems, Oid elmtype, int elmlen, bool elmbyval, char elmalign)
{
	Datum	   *array = palloc(sizeof(Datum) * (nelems + 1));

	array[0] = nelems;
	if (nelems > 0)
		memcpy(&array[1], elems, sizeof(Datum) * nelems);
	return (ArrayType *) array;
}

void
get_typlenbyvalalign(Oid typid, int16 *typlen, bool *typbyval, char *typalign)
{
	*typlen = 8;
	*typbyval = true;
	*typalign = TYPALIGN_DOUBLE;
}

void
pg_qsort(void *base, size_t nel, size_t elsize, int (*cmp)(const void *, const void *))
{
#undef qsort
	qsort(base, nel, elsize, cmp);
}

/* ---------- a hash table of 64-bit keys ---------- */

struct HTAB
{
	uint64	   *keys;
	long		count;
	long		space;
};

HTAB *
hash_create(const char *tabname, long nelem, const HASHCTL *info, int flags)
{
	HTAB	   *table = MemoryContextAllocZero(TopMemoryContext, sizeof(HTAB));

	if (info->keysize != sizeof(uint64) || info->entrysize != sizeof(uint64))
		sim_fail("hash_create() for something else than 64-bit keys");
	table->space = 8;
	table->keys = MemoryContextAlloc(TopMemoryContext, sizeof(uint64) * table->space);
	return table;
}

void
hash_destroy(HTAB *table)
{
	pfree(table->keys);
	pfree(table);
}

long
hash_get_num_entries(HTAB *table)
{
	return table->count;
}

void *
hash_search(HTAB *table, const void *keyPtr, HASHACTION action, bool *foundPtr)
{
	uint64		key = *(const uint64 *) keyPtr;

	for (long i = 0; i < table->count; i++)
	{
		if (table->keys[i] != key)
			continue;
		if (action == HASH_REMOVE)
			table->keys[i] = table->keys[--table->count];
		return &table->keys[i];
	}
	if (action != HASH_ENTER)
		return NULL;
	if (table->count == table->space)
	{
		table->space *= 2;
		table->keys = repalloc(table->keys, sizeof(uint64) * table->space);
	}
	table->keys[table->count] = key;
	return &table->keys[table->count++];
}
