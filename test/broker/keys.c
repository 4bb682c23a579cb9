/*
 * keys.c
 *	  See keys.h.
 */
#define _GNU_SOURCE

#include "keys.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char base32[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
static const char base64url[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* Both without padding: bits from the left, so many a digit. */
static void
encode(const char *digits, int width, const unsigned char *raw, size_t len, char *text)
{
	uint32_t	bits = 0;
	int			count = 0;

	for (size_t i = 0; i < len; i++)
	{
		bits = bits << 8 | raw[i];
		for (count += 8; count >= width; count -= width)
			*text++ = digits[(bits >> (count - width)) & ((1U << width) - 1)];
	}
	if (count > 0)
		*text++ = digits[(bits << (width - count)) & ((1U << width) - 1)];
	*text = '\0';
}

static void
finish(unsigned char *raw, size_t len, char *text)
{
	uint16_t	crc = 0;

	for (size_t i = 0; i < len; i++)
	{
		crc ^= (uint16_t) (raw[i] << 8);
		for (int bit = 0; bit < 8; bit++)
			crc = (uint16_t) (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1);
	}
	raw[len] = (unsigned char) crc;
	raw[len + 1] = (unsigned char) (crc >> 8);
	encode(base32, 5, raw, len + 2, text);
}

void
key_create(Key *key, char kind)
{
	unsigned char raw[40];
	size_t		len = 32;
	int			prefix = (int) (strchr(base32, kind) - base32) << 3;

	key->pair = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
	raw[0] = (unsigned char) prefix;
	EVP_PKEY_get_raw_public_key(key->pair, raw + 1, &len);
	finish(raw, 33, key->public);
	raw[0] = (unsigned char) (18 << 3 | prefix >> 5);
	raw[1] = (unsigned char) ((prefix & 31) << 3);
	EVP_PKEY_get_raw_private_key(key->pair, raw + 2, &len);
	finish(raw, 34, key->seed);
}

void
key_free(Key *key)
{
	EVP_PKEY_free(key->pair);
}

static void
sign(const Key *key, const char *text, unsigned char *signature)
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	size_t		len = 64;

	EVP_DigestSignInit(context, NULL, NULL, NULL, key->pair);
	EVP_DigestSign(context, signature, &len, (const unsigned char *) text, strlen(text));
	EVP_MD_CTX_free(context);
}

char *
jwt_create(const Key *issuer, const Key *subject, const char *claims, long exp)
{
	static const char header[] = "{\"typ\":\"JWT\",\"alg\":\"ed25519-nkey\"}";
	static long serial;
	char		expiry[40] = "";
	char	   *body;
	char	   *jwt;
	char	   *end;
	unsigned char signature[64];

	if (exp != 0)
		snprintf(expiry, sizeof(expiry), "\"exp\":%ld,", exp);
	if (asprintf(&body, "{\"jti\":\"T%ld\",\"iat\":%ld,%s\"iss\":\"%s\",\"name\":\"test\",\"sub\":\"%s\",\"nats\":{%s,\"version\":2}}",
				 ++serial, (long) time(NULL), expiry, issuer->public, subject->public, claims) < 0)
		abort();
	jwt = malloc(2 * strlen(body) + 300);
	encode(base64url, 6, (const unsigned char *) header, strlen(header), jwt);
	end = jwt + strlen(jwt);
	*end++ = '.';
	encode(base64url, 6, (const unsigned char *) body, strlen(body), end);
	sign(issuer, jwt, signature);
	end += strlen(end);
	*end++ = '.';
	encode(base64url, 6, signature, sizeof(signature), end);
	free(body);
	return jwt;
}

/* Replaces the file at once, as an operator's tool should. */
void
write_file(const char *path, int mode, const char *format,...)
{
	char		other[256];
	va_list		arguments;
	FILE	   *file;

	snprintf(other, sizeof(other), "%s.new", path);
	file = fopen(other, "w");
	va_start(arguments, format);
	vfprintf(file, format, arguments);
	va_end(arguments);
	fclose(file);
	if (chmod(other, (mode_t) mode) != 0 || rename(other, path) != 0)
		abort();
}

void
write_creds(const char *path, const char *jwt, const Key *user)
{
	write_file(path, 0600, "-----BEGIN NATS USER JWT-----\n%s\n------END NATS USER JWT------\n\n"
			   "-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n", jwt, user->seed);
}
