/*
 * message.h
 *	  What stands for a message on its way to the broker.
 */
#ifndef SIM_MESSAGE_H
#define SIM_MESSAGE_H

#include <stdint.h>

typedef struct SimMessage
{
	int64_t		position;
	int			size;
	char		type[8];
	char		subject[48];
} SimMessage;

#endif							/* SIM_MESSAGE_H */
