/*
 * broker_test.h
 *	  The parts of broker_test.
 */
#ifndef BROKER_TEST_H
#define BROKER_TEST_H

/*
 * A call that waits for a frozen server takes until the thaw. Sanitizers and
 * megabytes of messages on a busy machine only slow it down.
 */
#ifdef SANITIZED
#define LONGEST_CALL_US 500000
#define GRACE_MS 10000
#else
#define LONGEST_CALL_US 50000
#define GRACE_MS 2000
#endif
#define LONGEST_LARGE_CALL_US 800000

extern void test_faults(void);	/* broker_test_faults.c */
extern void test_tls(void);
extern void test_batches(void); /* broker_test_batch.c */
extern void test_consume(void);	/* broker_test_consume.c */
extern void test_access(void);	/* broker_test_access.c */
extern void test_certificates(void);	/* broker_test_tls.c */
extern void test_moves(void);	/* broker_test_moves.c */

#endif							/* BROKER_TEST_H */
