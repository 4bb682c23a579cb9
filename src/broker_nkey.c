/*
 * broker_nkey.c
 *	  From a file with the seed of a user's NKey to the public key, which the
 *	  server asks for and libnats doesn't derive. Knows no connection; the seed
 *	  is wiped from memory and never part of a text.
 *
 * An NKey is base32 without padding: one or two bytes that say what it is, 32
 * bytes of an ed25519 key, a CRC of both.
 */
#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "broker_internal.h"

#define RAW_KEY_LEN 32
#define SEED_LEN 58				/* characters, of 2 + 32 + 2 bytes */
#define SEED_RAW_LEN 36
#define PUBLIC_RAW_LEN 35		/* 1 + 32 + 2 bytes */

/* The first bytes: 5 bits each, so that they show as "S" and "U". */
#define PREFIX_SEED (18 << 3)
#define PREFIX_USER (20 << 3)

static const char base32[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

static bool
decode_base32(const char *text, size_t len, unsigned char *raw)
{
	uint32_t	bits = 0;
	int			count = 0;

	for (size_t i = 0; i < len; i++)
	{
		const char *digit = memchr(base32, text[i], 32);

		if (digit == NULL)
			return false;
		bits = bits << 5 | (uint32_t) (digit - base32);
		count += 5;
		if (count >= 8)
		{
			count -= 8;
			*raw++ = (unsigned char) (bits >> count);
		}
	}
	return true;
}

static void
encode_base32(const unsigned char *raw, size_t len, char *text)
{
	uint32_t	bits = 0;
	int			count = 0;

	for (size_t i = 0; i < len; i++)
	{
		bits = bits << 8 | raw[i];
		for (count += 8; count >= 5; count -= 5)
			*text++ = base32[bits >> (count - 5) & 31];
	}
	*text = '\0';
}

/* CRC-16 with polynomial 0x1021, as XMODEM has it. */
static uint16_t
checksum(const unsigned char *raw, size_t len)
{
	uint16_t	sum = 0;

	for (size_t i = 0; i < len; i++)
	{
		sum ^= (uint16_t) (raw[i] << 8);
		for (int bit = 0; bit < 8; bit++)
			sum = (uint16_t) (sum & 0x8000 ? sum << 1 ^ 0x1021 : sum << 1);
	}
	return sum;
}

/* Takes the 32 bytes out of the seed's text. */
static bool
decode_seed(const char *text, size_t len, unsigned char *key)
{
	unsigned char raw[SEED_RAW_LEN + 1];
	bool		valid = false;

	if (len == SEED_LEN && decode_base32(text, len, raw))
		valid = (raw[0] & 0xf8) == PREFIX_SEED &&
			((raw[0] & 7) << 5 | raw[1] >> 3) == PREFIX_USER &&
			checksum(raw, SEED_RAW_LEN - 2) == (raw[SEED_RAW_LEN - 2] | raw[SEED_RAW_LEN - 1] << 8);
	if (valid)
		memcpy(key, raw + 2, RAW_KEY_LEN);
	OPENSSL_cleanse(raw, sizeof(raw));
	return valid;
}

/* Looks for the line that begins with "SU", as the library will to sign. */
static bool
find_seed(FILE *file, unsigned char *key)
{
	char		line[256];
	bool		found = false;

	while (!found && fgets(line, sizeof(line), file) != NULL)
	{
		const char *begin = line + strspn(line, " \t");

		if (begin[0] == 'S' && begin[1] == 'U')
			found = decode_seed(begin, strcspn(begin, " \t\r\n"), key);
	}
	OPENSSL_cleanse(line, sizeof(line));
	return found;
}

static bool
derive_public(const unsigned char *seed, unsigned char *public)
{
	size_t		len = RAW_KEY_LEN;
	EVP_PKEY   *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, RAW_KEY_LEN);
	bool		derived = key != NULL && EVP_PKEY_get_raw_public_key(key, public, &len) == 1;

	EVP_PKEY_free(key);
	return derived;
}

/*
 * Writes the public key that belongs to the file's seed. False, and error says
 * why, if there is none. A buffer of stdio's would keep the seed: there is none.
 */
bool
broker_nkey_public(const char *seed_file, char public[BROKER_NKEY_SIZE], char *error)
{
	FILE	   *file = fopen(seed_file, "re");
	unsigned char seed[RAW_KEY_LEN];
	unsigned char raw[PUBLIC_RAW_LEN] = {PREFIX_USER};
	uint16_t	sum;
	bool		done;

	if (file == NULL)
	{
		broker_text(error, "could not read outbox.nkey_seed_file");
		return false;
	}
	setvbuf(file, NULL, _IONBF, 0);
	done = find_seed(file, seed);
	fclose(file);
	if (!done)
		broker_text(error, "outbox.nkey_seed_file contains no seed of a user's NKey");
	else if (!(done = derive_public(seed, raw + 1)))
		broker_text(error, "could not derive the public key of outbox.nkey_seed_file");
	OPENSSL_cleanse(seed, sizeof(seed));

	sum = checksum(raw, PUBLIC_RAW_LEN - 2);
	raw[PUBLIC_RAW_LEN - 2] = (unsigned char) sum;
	raw[PUBLIC_RAW_LEN - 1] = (unsigned char) (sum >> 8);
	encode_base32(raw, PUBLIC_RAW_LEN, public);
	return done;
}
