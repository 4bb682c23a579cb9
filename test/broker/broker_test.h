/*
 * broker_test.h
 *	  The two halves of broker_test.
 */
#ifndef BROKER_TEST_H
#define BROKER_TEST_H

extern void test_faults(void);	/* broker_test_faults.c */
extern void test_tls(void);

#endif							/* BROKER_TEST_H */
