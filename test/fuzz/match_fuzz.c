/*
 * match_fuzz.c
 *	  Subjects that are paused (src/pause.c): a pattern stands for just the
 *	  subjects that a NATS subscription to it would get.
 */
#include "fuzz.h"
#include "pause.h"
#include "reference.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	char	   *pattern = fuzz_take_text(&input);
	char	   *subject = fuzz_take_text(&input);
	OutboxPause pauses[2] = {{"other", NULL}, {NULL, pattern}};
	OutboxPauseList list = {pauses, 2, false};

	/* what outbox.pause() and enqueue let pass; of others only that nothing is read beyond them */
	bool		matches = outbox_pause_matches(pattern, subject);

	if (reference_publishable(subject))
		property(matches == reference_matches(pattern, subject));
	property(outbox_pause_holds(&list, "type", subject) == matches);
	property(outbox_pause_holds(&list, "other", subject));
	free(pattern);
	free(subject);
	return 0;
}
