/*
 * archive_manifest.c
 *	  Names and manifests of the archive's files, and checking a file against
 *	  its manifest.
 *
 * A manifest is a flat JSON object. It is read without believing it: keys may
 * come in any order, unknown ones are passed over, what is missing or out of
 * range is an error. Must know neither PostgreSQL nor NATS.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "archive_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINES ".jsonl"
#define MANIFEST ".manifest.json"
#define POSITION_DIGITS 20

/* No manifest of ours comes near it. */
#define MAX_MANIFEST 65536

#define LINES_BETWEEN_CALLS 256

static const char *const suffixes[] = {[ARCHIVE_GZIP] = LINES ".gz", [ARCHIVE_ZSTD] = LINES ".zst"};

/* ------------------------------------------------------------------- names */

void
outbox_archive_prefix(const char *database, char prefix[ARCHIVE_NAME_SIZE])
{
	size_t		at = (size_t) snprintf(prefix, ARCHIVE_NAME_SIZE, "outbox-");

	for (const unsigned char *c = (const unsigned char *) database; *c != '\0' && at + 8 < ARCHIVE_NAME_SIZE; c++)
	{
		bool		plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '_';

		at += (size_t) snprintf(prefix + at, ARCHIVE_NAME_SIZE - at, plain ? "%c" : "%%%02X", *c);
	}
	snprintf(prefix + at, ARCHIVE_NAME_SIZE - at, "-");
}

void
outbox_archive_name(const char *database, int64_t first_position, int64_t last_position, ArchiveCompression compression,
					char name[ARCHIVE_NAME_SIZE])
{
	size_t		length;

	outbox_archive_prefix(database, name);
	length = strlen(name);
	snprintf(name + length, ARCHIVE_NAME_SIZE - length, "%0*" PRId64 "-%0*" PRId64 "%s", POSITION_DIGITS, first_position,
			 POSITION_DIGITS, last_position, suffixes[compression]);
}

/* Where the suffix of a file begins; NULL: it isn't an archive file's. */
static const char *
find_suffix(const char *name, ArchiveCompression *compression)
{
	size_t		length = strlen(name);

	for (int i = 0; i < 2; i++)
	{
		size_t		suffix = strlen(suffixes[i]);

		if (length > suffix && strcmp(name + length - suffix, suffixes[i]) == 0)
		{
			if (compression != NULL)
				*compression = (ArchiveCompression) i;
			return name + length - suffix;
		}
	}
	return NULL;
}

/* "-" and the digits of a position. */
static bool
parse_position(const char *text, int64_t *position)
{
	int64_t		value = 0;

	if (text[0] != '-')
		return false;
	for (int i = 1; i <= POSITION_DIGITS; i++)
	{
		if (text[i] < '0' || text[i] > '9' || value > (INT64_MAX - (text[i] - '0')) / 10)
			return false;
		value = value * 10 + (text[i] - '0');
	}
	if (position != NULL)
		*position = value;
	return true;
}

bool
outbox_archive_parse_name(const char *name, int64_t *first_position, int64_t *last_position, ArchiveCompression *compression)
{
	const char *suffix = find_suffix(name, compression);

	return suffix != NULL && strncmp(name, "outbox-", 7) == 0 && suffix - name >= 2 * (POSITION_DIGITS + 1) + 7 &&
		parse_position(suffix - 2 * (POSITION_DIGITS + 1), first_position) &&
		parse_position(suffix - (POSITION_DIGITS + 1), last_position);
}

bool
outbox_archive_manifest_path(const char *file, char *buffer, size_t size)
{
	const char *suffix = find_suffix(file, NULL);
	size_t		length = suffix == NULL ? strlen(file) : (size_t) (suffix - file);

	return (size_t) snprintf(buffer, size, "%.*s%s", (int) length, file, MANIFEST) < size;
}

/* ----------------------------------------------------------------- writing */

/* A JSON string; valid UTF-8 stays as it is. */
static void
put_string(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text != '\0'; text++)
	{
		if (*text == '"' || *text == '\\')
			fprintf(out, "\\%c", *text);
		else if ((unsigned char) *text < 0x20)
			fprintf(out, "\\u%04x", (unsigned char) *text);
		else
			fputc(*text, out);
	}
	fputc('"', out);
}

static void
put_text(FILE *out, const char *key, const char *value)
{
	fprintf(out, ",\n \"%s\": ", key);
	put_string(out, value);
}

static void
put_number(FILE *out, const char *key, int64_t value)
{
	fprintf(out, ",\n \"%s\": %" PRId64, key, value);
}

char *
outbox_archive_manifest_text(const ArchiveManifest *manifest)
{
	char	   *text = NULL;
	size_t		size;
	FILE	   *out = open_memstream(&text, &size);
	bool		failed;

	if (out == NULL)
		return NULL;
	fprintf(out, "{\"format\": \"%s\"", ARCHIVE_FORMAT);
	put_number(out, "format_version", manifest->format_version);
	put_text(out, "file", manifest->file);
	put_text(out, "database", manifest->database);
	put_text(out, "system_identifier", manifest->system_identifier);
	put_number(out, "range", manifest->range);
	put_number(out, "first_position", manifest->first_position);
	put_number(out, "last_position", manifest->last_position);
	put_text(out, "first_time", manifest->first_time);
	put_text(out, "last_time", manifest->last_time);
	put_number(out, "events", manifest->events);
	put_number(out, "text_bytes", manifest->text_bytes);
	put_number(out, "file_bytes", manifest->file_bytes);
	put_text(out, "sha256", manifest->sha256);
	fputs("}\n", out);
	failed = ferror(out) != 0;
	if (fclose(out) != 0 || failed)
	{
		free(text);
		return NULL;
	}
	return text;
}

/* ----------------------------------------------------------------- reading */

typedef struct Field
{
	const char *key;
	char	   *text;			/* NULL: a number */
	size_t		size;
	int64_t	   *number;
	bool		found;
} Field;

static const char *
skip_blanks(const char *c)
{
	return c + strspn(c, " \t\r\n");
}

/* Four hex digits as UTF-8. Surrogates and NUL aren't written by us, and are refused. */
static bool
read_unicode(const char *digits, char *out, size_t *length)
{
	unsigned int code = 0;

	for (int i = 0; i < 4; i++)
	{
		const char *hex = "0123456789abcdef";
		const char *digit = digits[i] == '\0' ? NULL : strchr(hex, digits[i] >= 'A' && digits[i] <= 'F' ? digits[i] + 32 : digits[i]);

		if (digit == NULL)
			return false;
		code = code * 16 + (unsigned int) (digit - hex);
	}
	if (code == 0 || (code >= 0xd800 && code <= 0xdfff))
		return false;
	if (code < 0x80)
		out[(*length)++] = (char) code;
	else if (code < 0x800)
	{
		out[(*length)++] = (char) (0xc0 | code >> 6);
		out[(*length)++] = (char) (0x80 | (code & 0x3f));
	}
	else
	{
		out[(*length)++] = (char) (0xe0 | code >> 12);
		out[(*length)++] = (char) (0x80 | (code >> 6 & 0x3f));
		out[(*length)++] = (char) (0x80 | (code & 0x3f));
	}
	return true;
}

/* A string, which begins at **at, into a buffer. */
static bool
read_string(const char **at, char *out, size_t size)
{
	static const char escapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
	const char *c = *at;
	size_t		length = 0;

	if (*c++ != '"')
		return false;
	for (; *c != '"'; c++)
	{
		if (length + 4 > size || (unsigned char) *c < 0x20)
			return false;
		if (*c != '\\')
			out[length++] = *c;
		else if (*++c == 'u')
		{
			if (!read_unicode(c + 1, out, &length))
				return false;
			c += 4;
		}
		else
		{
			size_t		i = 0;

			while (escapes[i] != '\0' && escapes[i] != *c)
				i += 2;
			if (escapes[i] == '\0' || *c == '\0')
				return false;
			out[length++] = escapes[i + 1];
		}
	}
	out[length] = '\0';
	*at = c + 1;
	return true;
}

static bool
read_number(const char **at, int64_t *number)
{
	char	   *end;

	if ((**at < '0' || **at > '9') && **at != '-')
		return false;
	errno = 0;
	*number = strtoll(*at, &end, 10);
	if (errno != 0 || end == *at || strchr(".eE", *end) != NULL)
		return false;
	*at = end;
	return true;
}

/* A value that nobody asked for: text, number or word. */
static bool
skip_value(const char **at)
{
	char		text[4096];
	size_t		length;

	if (**at == '"')
		return read_string(at, text, sizeof(text));
	length = strspn(*at, "+-.0123456789abcdefghijklmnopqrstuvwxyzE");
	*at += length;
	return length > 0;
}

static bool
read_value(const char **at, const char *key, Field *fields, size_t count)
{
	for (size_t i = 0; i < count; i++)
	{
		if (strcmp(fields[i].key, key) != 0)
			continue;
		if (fields[i].found)
			return false;
		fields[i].found = true;
		return fields[i].text == NULL ? read_number(at, fields[i].number) : read_string(at, fields[i].text, fields[i].size);
	}
	return skip_value(at);
}

/* The members of an object, which is all of the text. */
static bool
read_object(const char *text, Field *fields, size_t count)
{
	const char *c = skip_blanks(text);
	char		key[64];

	if (*c != '{')
		return false;
	do
	{
		c = skip_blanks(c + 1);
		if (!read_string(&c, key, sizeof(key)))
			return false;
		c = skip_blanks(c);
		if (*c++ != ':')
			return false;
		c = skip_blanks(c);
		if (!read_value(&c, key, fields, count))
			return false;
		c = skip_blanks(c);
	} while (*c == ',');
	return *c == '}' && *skip_blanks(c + 1) == '\0';
}

static bool
is_sha256(const char *text)
{
	return strlen(text) == ARCHIVE_SHA256_SIZE - 1 && strspn(text, "0123456789abcdef") == ARCHIVE_SHA256_SIZE - 1;
}

bool
outbox_archive_manifest_parse(const char *text, ArchiveManifest *manifest, ArchiveError *error)
{
	char		format[32];
	int64_t		version = 0;
	Field		fields[] = {
		{"format", format, sizeof(format), NULL, false},
		{"format_version", NULL, 0, &version, false},
		{"file", manifest->file, sizeof(manifest->file), NULL, false},
		{"database", manifest->database, sizeof(manifest->database), NULL, false},
		{"system_identifier", manifest->system_identifier, sizeof(manifest->system_identifier), NULL, false},
		{"range", NULL, 0, &manifest->range, false},
		{"first_position", NULL, 0, &manifest->first_position, false},
		{"last_position", NULL, 0, &manifest->last_position, false},
		{"first_time", manifest->first_time, sizeof(manifest->first_time), NULL, false},
		{"last_time", manifest->last_time, sizeof(manifest->last_time), NULL, false},
		{"events", NULL, 0, &manifest->events, false},
		{"text_bytes", NULL, 0, &manifest->text_bytes, false},
		{"file_bytes", NULL, 0, &manifest->file_bytes, false},
		{"sha256", manifest->sha256, sizeof(manifest->sha256) + 3, NULL, false}};
	char		sha256[ARCHIVE_SHA256_SIZE + 3];
	size_t		count = sizeof(fields) / sizeof(fields[0]);

	memset(manifest, 0, sizeof(*manifest));
	fields[count - 1].text = sha256;
	if (!read_object(text, fields, count))
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "the manifest is not a JSON object with the keys of one");
	for (size_t i = 0; i < count; i++)
	{
		if (!fields[i].found)
			return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "the manifest has no \"%s\"", fields[i].key);
	}
	if (strcmp(format, ARCHIVE_FORMAT) != 0 || version != ARCHIVE_FORMAT_VERSION)
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "the manifest is of an unknown format or version");
	if (manifest->first_position < 1 || manifest->last_position < manifest->first_position || manifest->events < 1 ||
		manifest->events - 1 > manifest->last_position - manifest->first_position || manifest->text_bytes < 1 || manifest->file_bytes < 1)
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "the manifest's numbers contradict each other");
	if (!is_sha256(sha256))
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "the manifest's \"sha256\" is none");
	memcpy(manifest->sha256, sha256, ARCHIVE_SHA256_SIZE);
	manifest->format_version = (int) version;
	return true;
}

bool
outbox_archive_manifest_read(const char *file, ArchiveManifest *manifest, ArchiveError *error)
{
	char		path[4096 + ARCHIVE_NAME_SIZE];
	char		text[MAX_MANIFEST];
	size_t		length;
	FILE	   *in;
	int			failure;

	if (!outbox_archive_manifest_path(file, path, sizeof(path)))
		return outbox_archive_complain(error, ARCHIVE_SYSTEM, ENAMETOOLONG, "could not open a manifest");
	in = fopen(path, "re");
	if (in == NULL)
		return outbox_archive_complain(error, errno == ENOENT ? ARCHIVE_MISSING : ARCHIVE_SYSTEM, errno, "could not open \"%s\"", path);
	length = fread(text, 1, sizeof(text) - 1, in);
	failure = ferror(in) ? errno : 0;
	fclose(in);
	if (failure != 0)
		return outbox_archive_complain(error, ARCHIVE_SYSTEM, failure, "could not read \"%s\"", path);
	text[length] = '\0';
	if (length != strlen(text))
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "the manifest contains NUL bytes");
	return outbox_archive_manifest_parse(text, manifest, error);
}

/* --------------------------------------------------------------- verifying */

/* What the lines come to. */
typedef struct Sum
{
	int64_t		lines;
	int64_t		bytes;
	int64_t		first;
	int64_t		last;
} Sum;

static bool
add_line(Sum *sum, const char *line, size_t length, ArchiveError *error)
{
	int64_t		position;

	if (!outbox_archive_line_position(line, length, &position) || line[length - 1] != '}')
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "line %" PRId64 " is not an event", sum->lines + 1);
	if (sum->lines > 0 && position <= sum->last)
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "line %" PRId64 " has position %" PRId64 " after %" PRId64,
									   sum->lines + 1, position, sum->last);
	if (sum->lines == 0)
		sum->first = position;
	sum->last = position;
	sum->lines++;
	sum->bytes += (int64_t) length + 1;
	return true;
}

static bool
compare(const Sum *sum, const ArchiveManifest *manifest, const char *sha256, ArchiveError *error)
{
	if (strcmp(sha256, manifest->sha256) != 0)
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "its checksum is not the manifest's");
	if (sum->lines != manifest->events)
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "it has %" PRId64 " events, and the manifest says %" PRId64,
									   sum->lines, manifest->events);
	if (sum->first != manifest->first_position || sum->last != manifest->last_position)
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "it has positions %" PRId64 " to %" PRId64 ", and the manifest says %" PRId64 " to %" PRId64,
									   sum->first, sum->last, manifest->first_position, manifest->last_position);
	if (sum->bytes != manifest->text_bytes)
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "it has %" PRId64 " bytes of text, and the manifest says %" PRId64,
									   sum->bytes, manifest->text_bytes);
	return true;
}

bool
outbox_archive_verify(const char *path, const ArchiveManifest *manifest, bool (*go_on)(void *arg), void *arg, ArchiveError *error)
{
	ArchiveReader *reader = outbox_archive_open(path, error);
	Sum			sum = {0};
	char		sha256[ARCHIVE_SHA256_SIZE];
	const char *line;
	size_t		length;
	ArchiveRead	read = ARCHIVE_FAILED;
	int64_t		done;
	int64_t		total = 0;
	bool		good = reader != NULL;

	if (good)
		outbox_archive_progress(reader, &done, &total);
	if (good && total != manifest->file_bytes)
		good = outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "it has %" PRId64 " bytes, and the manifest says %" PRId64, total,
									   manifest->file_bytes);
	while (good && (read = outbox_archive_next(reader, &line, &length, error)) == ARCHIVE_LINE)
	{
		if (go_on != NULL && sum.lines % LINES_BETWEEN_CALLS == 0 && !go_on(arg))
			good = outbox_archive_complain(error, ARCHIVE_STOPPED, 0, "stopped");
		else
			good = add_line(&sum, line, length, error);
	}
	if (good && read == ARCHIVE_END)
	{
		outbox_archive_sha256(reader, sha256);
		good = compare(&sum, manifest, sha256, error);
	}
	else
		good = false;
	outbox_archive_close(reader);
	return good;
}
