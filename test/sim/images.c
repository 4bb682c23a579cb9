/*
 * images.c
 *	  The list of the images, and their fresh start.
 */
#include "image.h"

#include <stdlib.h>
#include <string.h>

extern const struct SimImage sim_image_0, sim_image_1, sim_image_2, sim_image_3, sim_image_4, sim_image_5,
	sim_image_6, sim_image_7, sim_image_8, sim_image_9, sim_image_10, sim_image_11;

const struct SimImage *const sim_images[SIM_IMAGES] = {
	&sim_image_0,
	&sim_image_1,
	&sim_image_2,
	&sim_image_3,
	&sim_image_4,
	&sim_image_5,
	&sim_image_6,
	&sim_image_7,
	&sim_image_8,
	&sim_image_9,
	&sim_image_10,
	&sim_image_11,
};

/* What they were before anything ran. */
static void *initial[SIM_IMAGES];

void
sim_image_reset(int index)
{
	const struct SimImage *image = sim_images[index];
	size_t		size = image->data_end - image->data;

	if (initial[index] == NULL)
	{
		initial[index] = malloc(size);
		memcpy(initial[index], image->data, size);
	}
	memcpy(image->data, initial[index], size);
}
