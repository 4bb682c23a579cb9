/*
 * broker_login.c
 *	  User and password, or a token: what stands before the "@" of a URL, or in a
 *	  file of its own.
 *
 * In a URL they are percent-encoded. They are decoded here, because libnats does
 * so only from 3.10 on; what isn't an escape of two hexadecimal digits stays as
 * it is. In a file they are as they are. They are wiped from memory when done
 * with, and never part of a text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "ack.h"
#include "broker_internal.h"

/* The longest line of a file. */
#define MAX_LINE 4096

/*
 * Writes what JSON needs escaped as JSON does: the library puts users and
 * passwords into its CONNECT line as they are. NULL: out of memory.
 */
static char *
copy_word(const char *text, size_t len, bool percent_encoded)
{
	char	   *copy = malloc(6 * len + 1);
	char	   *used = copy;

	if (copy == NULL)
		return NULL;
	for (size_t i = 0; i < len; i++)
	{
		int			c = (unsigned char) text[i];

		if (percent_encoded && c == '%' && len - i > 2 && ack_hex_value(text[i + 1]) >= 0 && ack_hex_value(text[i + 2]) >= 0)
		{
			c = ack_hex_value(text[i + 1]) * 16 + ack_hex_value(text[i + 2]);
			i += 2;
		}
		if (c == '"' || c == '\\')
			*used++ = '\\';
		if (c < 0x20)
			used += sprintf(used, "\\u%04x", (unsigned int) c);
		else
			*used++ = (char) c;
	}
	*used = '\0';
	return copy;
}

bool
broker_login_given(const BrokerLogin *login)
{
	return login->user != NULL || login->token != NULL;
}

/* Takes "user:password" or "token"; nothing from an empty text. False: out of memory. */
bool
broker_login_parse(BrokerLogin *login, const char *text, size_t len, bool percent_encoded)
{
	const char *colon = memchr(text, ':', len);

	if (len == 0)
		return true;
	if (colon == NULL)
		return (login->token = copy_word(text, len, percent_encoded)) != NULL;
	login->user = copy_word(text, (size_t) (colon - text), percent_encoded);
	login->password = copy_word(colon + 1, len - (size_t) (colon + 1 - text), percent_encoded);
	return login->user != NULL && login->password != NULL;
}

/* Takes the first line of the file; false, and error says why, if that can't be. */
bool
broker_login_read(BrokerLogin *login, const char *path, char *error)
{
	FILE	   *file = fopen(path, "re");
	char		line[MAX_LINE] = "";
	size_t		len;
	bool		done = false;

	if (file == NULL)
	{
		broker_text(error, "could not read outbox.login_file");
		return false;
	}
	/* A buffer of stdio's would keep the secret. */
	setvbuf(file, NULL, _IONBF, 0);
	if (fgets(line, sizeof(line), file) == NULL)
		line[0] = '\0';
	fclose(file);
	len = strcspn(line, "\r\n");
	if (len == 0 || len == sizeof(line) - 1)
		broker_text(error, "outbox.login_file has no line with user:password or a token");
	else if (!(done = broker_login_parse(login, line, len, false)))
		broker_text(error, "out of memory");
	OPENSSL_cleanse(line, sizeof(line));
	return done;
}

static void
wipe(char **word)
{
	if (*word != NULL)
		OPENSSL_cleanse(*word, strlen(*word));
	free(*word);
	*word = NULL;
}

void
broker_login_wipe(BrokerLogin *login)
{
	wipe(&login->user);
	wipe(&login->password);
	wipe(&login->token);
}
