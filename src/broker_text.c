/*
 * broker_text.c
 *	  The small things the rest of the broker stands on: clocks, texts, counted
 *	  holders, threads.
 *
 * Every text that leaves the broker is made by broker_text(): printable ASCII,
 * because it ends up in log lines and tables of any encoding, and without the
 * credentials a URL may contain.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* memrchr, clocks of condition variables, eventfd */
#endif

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "broker_internal.h"
#include "signals.h"

static int64_t
read_clock_us(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t
broker_now_us(void)
{
	return read_clock_us(CLOCK_MONOTONIC);
}

int64_t
broker_wall_us(void)
{
	return read_clock_us(CLOCK_REALTIME);
}

/*
 * Replaces "user:password@" and "token@" after every "://" by "***@", in
 * place. A URL ends at white space or a comma, what it can't contain itself.
 */
static void
mask_credentials(char *text)
{
	char	   *at = text;

	while ((at = strstr(at, "://")) != NULL)
	{
		char	   *begin = at + 3;
		size_t		url_len = strcspn(begin, " \t\r\n,");
		char	   *sign = memrchr(begin, '@', url_len);

		at = begin;
		if (sign == NULL)
			continue;
		if (sign - begin >= 3)
		{
			memmove(begin + 3, sign, strlen(sign) + 1);
			memcpy(begin, "***", 3);
		}
		else
			memset(begin, '*', (size_t) (sign - begin));
	}
}

/* printf into a buffer of BROKER_TEXT_SIZE, cut, masked and printable. */
void
broker_text(char *target, const char *format, ...)
{
	char		long_text[4 * BROKER_TEXT_SIZE];
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(long_text, sizeof(long_text), format, arguments);
	va_end(arguments);

	/* Mask before cutting: half a secret would no longer look like one. */
	mask_credentials(long_text);
	long_text[BROKER_TEXT_SIZE - 1] = '\0';
	for (char *c = long_text; *c != '\0'; c++)
	{
		if (*c < 0x20 || *c > 0x7e)
			*c = '?';
	}
	memcpy(target, long_text, strlen(long_text) + 1);
}

/* The library's words for a call of this thread that just returned status. */
const char *
broker_nats_error(natsStatus status)
{
	natsStatus	last = NATS_OK;
	const char *text = nats_GetLastError(&last);
	const char *words;

	if (last != status || text == NULL || text[0] == '\0')
		return natsStatus_GetText(status);
	/* "(conn.c:1905): " means nothing to our readers. */
	words = text[0] == '(' ? strstr(text, "): ") : NULL;
	return words != NULL ? words + strlen("): ") : text;
}

BrokerPost *
broker_post_create(void)
{
	BrokerPost *post = calloc(1, sizeof(BrokerPost));
	pthread_condattr_t attributes;

	if (post == NULL)
		return NULL;
	post->holders = 1;
	post->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (post->wake_fd < 0)
	{
		free(post);
		return NULL;
	}
	pthread_mutex_init(&post->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&post->released, &attributes);
	pthread_condattr_destroy(&attributes);
	return post;
}

BrokerPost *
broker_post_hold(BrokerPost *post)
{
	pthread_mutex_lock(&post->lock);
	post->holders++;
	pthread_mutex_unlock(&post->lock);
	return post;
}

void
broker_post_release(BrokerPost *post)
{
	int			left;

	pthread_mutex_lock(&post->lock);
	left = --post->holders;
	pthread_cond_signal(&post->released);
	pthread_mutex_unlock(&post->lock);
	if (left > 0)
		return;
	close(post->wake_fd);
	pthread_cond_destroy(&post->released);
	pthread_mutex_destroy(&post->lock);
	free(post);
}

/* Waits until the caller is the only holder; false after grace_ms. */
bool
broker_post_wait(BrokerPost *post, int grace_ms)
{
	struct timespec until;
	bool		alone;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += grace_ms / 1000;
	until.tv_nsec += (long) (grace_ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000)
	{
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}

	pthread_mutex_lock(&post->lock);
	while (post->holders > 1 &&
		   pthread_cond_timedwait(&post->released, &post->lock, &until) != ETIMEDOUT)
		;
	alone = post->holders == 1;
	pthread_mutex_unlock(&post->lock);
	return alone;
}

/* Makes an eventfd readable; it never blocks, and a full counter is readable anyway. */
void
broker_wake(int event_fd)
{
	ssize_t		written = write(event_fd, &(uint64_t) {1}, sizeof(uint64_t));

	(void) written;
}

/*
 * Starts a detached thread with every signal blocked, whatever the caller's
 * mask is: signal handlers of the host process must not run on it.
 */
bool
broker_thread_start(pthread_t *thread, void *(*start)(void *), void *argument)
{
	pthread_attr_t attributes;
	sigset_t	before;
	int			failed;

	outbox_signals_block(&before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	failed = pthread_create(thread, &attributes, start, argument);
	pthread_attr_destroy(&attributes);
	outbox_signals_restore(&before);
	return failed == 0;
}
