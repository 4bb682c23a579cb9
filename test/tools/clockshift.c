/*
 * clockshift.c
 *	  For LD_PRELOAD: the system's time as if an administrator had set it.
 *
 * The file named by CLOCKSHIFT_FILE holds a number of microseconds, 64 bits in
 * the machine's order, that is added to the time of day; it may change at any
 * moment. Clocks that nobody can set (CLOCK_MONOTONIC, CLOCK_BOOTTIME) are not touched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;
static int	(*real_clock_gettime) (clockid_t, struct timespec *);

__attribute__((constructor)) static void
start(void)
{
	const char *path = getenv("CLOCKSHIFT_FILE");
	int			fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	void	   *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*shift), PROT_READ, MAP_SHARED, fd, 0);

	if (fd >= 0)
		close(fd);
	if (map != MAP_FAILED)
		shift = map;
	real_clock_gettime = (int (*) (clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
}

int
clock_gettime(clockid_t clock, struct timespec *time)
{
	int64_t		us;

	/* Before the constructor ran, by another library's. */
	if (real_clock_gettime == NULL)
		start();
	if (real_clock_gettime(clock, time) != 0)
		return -1;
	if (shift == NULL || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
		return 0;
	us = time->tv_nsec / 1000 + *shift % 1000000;
	time->tv_sec += *shift / 1000000 + (us < 0 ? -1 : us / 1000000);
	time->tv_nsec = (us < 0 ? us + 1000000 : us % 1000000) * 1000 + time->tv_nsec % 1000;
	return 0;
}

int
gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec time;

	(void) zone;
	if (clock_gettime(CLOCK_REALTIME, &time) != 0)
		return -1;
	now->tv_sec = time.tv_sec;
	now->tv_usec = time.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *result)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	if (result != NULL)
		*result = now.tv_sec;
	return now.tv_sec;
}
