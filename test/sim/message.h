/*
 * message.h
 *	  What stands for a message on its way to the broker.
 */
#ifndef SIM_MESSAGE_H
#define SIM_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

/* As many as the relay sends at most: OUTBOX_MAX_RUN of the simulation. */
#define SIM_MAX_BATCH 8

typedef struct SimMessage
{
	int64_t		position;
	int			size;
	char		type[8];
	char		subject[48];
	int64_t		batch;			/* 0: none */
	int			sequence;		/* in the batch, from 1 on */
	bool		commit;			/* the batch's last */
} SimMessage;

#endif							/* SIM_MESSAGE_H */
