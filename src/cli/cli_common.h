/*
 * cli_common.h
 *	  What the commands outbox-replay and outbox-top share.
 */
#ifndef OUTBOX_CLI_COMMON_H
#define OUTBOX_CLI_COMMON_H

#include <stdbool.h>
#include <stdint.h>

/* The command's name, for its complaints; each command defines it. */
extern const char cli_program[];

/* Says on stderr what is wrong with the arguments; returns false. */
extern bool cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The number that an option has as its value; false: it has complained. */
extern bool cli_read_number(const char *name, const char *text, int64_t min, int64_t max, int64_t *value);

/* Of a clock that nobody sets. */
extern int64_t cli_now_us(void);

#endif							/* OUTBOX_CLI_COMMON_H */
