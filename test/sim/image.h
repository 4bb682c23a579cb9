/*
 * image.h
 *	  Copies of the code under test, each with static variables of its own: one
 *	  for each process that can exist at a time.
 *
 * image.c is linked with src/ into one object, of which the Makefile makes the
 * copies by renaming the only symbol that stays visible.
 */
#ifndef SIM_IMAGE_H
#define SIM_IMAGE_H

#include <stddef.h>
#include <stdint.h>

struct OutboxDatabase;
struct OutboxNewEvent;

struct SimImage
{
	char	   *data;			/* all static variables */
	char	   *data_end;

	/* What the simulation calls, in the process whose image it is. */
	void		(*install_shmem)(void);
	void		(*relay_main)(uintptr_t arg);	/* NULL: the image of a backend */
	void		(*feed_callback)(int event, void *arg);
	void		(*operators_callback)(int event, void *arg);
	void		(*append)(struct OutboxNewEvent *events, int count);
	struct OutboxDatabase *(*attach)(void);
	int64_t		(*next_position)(struct OutboxDatabase *database);
	void		(*tell_relays)(void);
	void		(*wake_relays)(struct OutboxDatabase *database);
	void		(*revoke_expired)(struct OutboxDatabase *database);
	int64_t		(*clock_at)(int64_t timestamp);
};

#define SIM_IMAGES 12
extern const struct SimImage *const sim_images[SIM_IMAGES];

/* Static variables become again what they are at the start of a process. */
extern void sim_image_reset(int index);

#endif							/* SIM_IMAGE_H */
