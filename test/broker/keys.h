/*
 * keys.h
 *	  NKeys, and the JWTs that make operators, accounts and users of them: what
 *	  the tests need in place of the tools "nk" and "nsc".
 */
#ifndef BROKER_KEYS_H
#define BROKER_KEYS_H

#include <openssl/evp.h>

typedef struct Key
{
	EVP_PKEY   *pair;
	char		public[57];
	char		seed[59];
} Key;

/* kind: 'O' operator, 'A' account, 'U' user */
extern void key_create(Key *key, char kind);
extern void key_free(Key *key);

/* claims: the members of "nats", without version. exp 0: never. The caller frees. */
extern char *jwt_create(const Key *issuer, const Key *subject, const char *claims, long exp);

extern void write_file(const char *path, int mode, const char *format,...) __attribute__((format(printf, 3, 4)));
extern void write_creds(const char *path, const char *jwt, const Key *user);

#endif							/* BROKER_KEYS_H */
