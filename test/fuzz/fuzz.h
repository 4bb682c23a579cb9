/*
 * fuzz.h
 *	  What the fuzz targets share.
 *
 * A target NAME_fuzz.c defines LLVMFuzzerTestOneInput(): it cuts the input into
 * the arguments of the code under test, calls it, and states with property()
 * what must hold of the result. Input for a property comes from the fuzzer or is
 * derived from it, never from chance, so that an input that fails once fails again.
 *
 * Every piece of input is an allocation of its exact size, so that
 * AddressSanitizer sees a read or write one byte beyond it.
 */
#ifndef OUTBOX_FUZZ_H
#define OUTBOX_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define property(condition) \
	((condition) ? (void) 0 : fuzz_fail(#condition, __FILE__, __LINE__))

static inline _Noreturn void
fuzz_fail(const char *condition, const char *file, int line)
{
	fprintf(stderr, "property violated: %s (%s:%d)\n", condition, file, line);
	abort();
}

/* The input that wasn't taken yet. */
typedef struct FuzzInput
{
	const uint8_t *at;
	size_t		left;
} FuzzInput;

/* fuzz_input.c. Each takes a piece; at the end it is zero or empty. To be freed, except the byte. */
extern uint8_t fuzz_take_byte(FuzzInput *input);
extern char *fuzz_take_text(FuzzInput *input);	/* up to the next NUL, which separates */
extern char *fuzz_take_bytes(FuzzInput *input, size_t length);
extern char *fuzz_copy(const char *text);

#endif							/* OUTBOX_FUZZ_H */
