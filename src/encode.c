/*
 * encode.c
 *	  What an event looks like on the wire: subjects, headers, times, ids.
 *
 * Pure logic over caller's buffers; it must know neither PostgreSQL nor NATS,
 * allocates nothing, keeps no state and ignores the locale, so that any
 * process and any thread may call it. The rules are stricter than those of the
 * NATS server and client on purpose: what those accept silently (a literal
 * star, an empty token, a header key with a colon) surfaces later as a
 * dropped connection, a missing stream or a changed value, far from the
 * application that sent it.
 */
#include "encode.h"

#include <stdio.h>
#include <string.h>

/* Output that never overruns: the first byte that doesn't fit fails the whole. */
typedef struct Sink
{
	char	   *out;
	size_t		size;
	size_t		length;
	bool		full;
} Sink;

typedef enum Placeholder
{
	PLACEHOLDER_AGGREGATE_TYPE,
	PLACEHOLDER_AGGREGATE_ID,
	PLACEHOLDER_EVENT_TYPE,
	PLACEHOLDER_COUNT,			/* also: no placeholder of ours */
} Placeholder;

static const char *const placeholder_names[PLACEHOLDER_COUNT] = {
	[PLACEHOLDER_AGGREGATE_TYPE] = "{aggregate_type}",
	[PLACEHOLDER_AGGREGATE_ID] = "{aggregate_id}",
	[PLACEHOLDER_EVENT_TYPE] = "{event_type}",
};

/* A limit from encode.h inside a phrase. */
#define LIMIT_TEXT(limit) LIMIT_DIGITS(limit)
#define LIMIT_DIGITS(digits) #digits

#define MICROSECONDS_PER_SECOND INT64_C(1000000)
#define SECONDS_PER_DAY INT64_C(86400)
#define TIME_BUFFER 40

static void
sink_open(Sink *sink, char *out, size_t out_size)
{
	sink->out = out;
	sink->size = out_size;
	sink->length = 0;
	sink->full = out_size == 0;
}

static void
sink_put(Sink *sink, char c)
{
	/* one byte stays free for the terminating NUL */
	if (sink->full || sink->length + 1 >= sink->size)
		sink->full = true;
	else
		sink->out[sink->length++] = c;
}

static void
sink_put_bytes(Sink *sink, const char *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		sink_put(sink, bytes[i]);
}

static void
sink_put_percent(Sink *sink, unsigned char byte)
{
	static const char digits[] = "0123456789ABCDEF";

	sink_put(sink, '%');
	sink_put(sink, digits[byte >> 4]);
	sink_put(sink, digits[byte & 0x0f]);
}

/* The length, or -1 with an empty string: half a subject must not look like one. */
static int
sink_close(Sink *sink)
{
	if (sink->full)
	{
		if (sink->size > 0)
			sink->out[0] = '\0';
		return -1;
	}
	sink->out[sink->length] = '\0';
	return (int) sink->length;
}

/* isalnum() and friends follow the locale, which in a backend is the database's. */
static bool
is_ascii_alnum(unsigned char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool
is_control(unsigned char c)
{
	return c < 0x20 || c == 0x7f;
}

static bool
contains_control(const char *text)
{
	for (; *text != '\0'; text++)
	{
		if (is_control((unsigned char) *text))
			return true;
	}
	return false;
}

static char
ascii_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char) (c - 'A' + 'a') : c;
}

/* Whether text starts with prefix, which is in lower case, letter case ignored. */
static bool
starts_with_nocase(const char *text, const char *prefix)
{
	for (; *prefix != '\0'; text++, prefix++)
	{
		if (ascii_lower(*text) != *prefix)
			return false;
	}
	return true;
}

/*
 * The length of the UTF-8 sequence at s, or 0 if there is none: the well-formed
 * ones of Unicode table 3-7, so no overlong forms, surrogates or code points
 * above U+10FFFF. The second byte alone decides those; a NUL fails every test,
 * so this never reads past the end.
 */
static size_t
utf8_length(const unsigned char *s)
{
	unsigned char low = 0x80;
	unsigned char high = 0xbf;
	size_t		length;

	if (s[0] < 0x80)
		return 1;
	if (s[0] < 0xc2 || s[0] > 0xf4)
		return 0;
	length = 2 + (s[0] >= 0xe0) + (s[0] >= 0xf0);

	if (s[0] == 0xe0)
		low = 0xa0;
	else if (s[0] == 0xed)
		high = 0x9f;
	else if (s[0] == 0xf0)
		low = 0x90;
	else if (s[0] == 0xf4)
		high = 0x8f;
	if (s[1] < low || s[1] > high)
		return 0;

	for (size_t i = 2; i < length; i++)
	{
		if (s[i] < 0x80 || s[i] > 0xbf)
			return 0;
	}
	return length;
}

static bool
is_utf8(const char *text)
{
	const unsigned char *s = (const unsigned char *) text;

	while (*s != '\0')
	{
		size_t		length = utf8_length(s);

		if (length == 0)
			return false;
		s += length;
	}
	return true;
}

static void
put_token(Sink *sink, const char *in)
{
	for (; *in != '\0'; in++)
	{
		unsigned char c = (unsigned char) *in;

		if (is_ascii_alnum(c) || c == '_' || c == '-')
			sink_put(sink, *in);
		else
			sink_put_percent(sink, c);
	}
}

/*
 * The percent sign itself is always encoded, which makes the mapping
 * injective. An empty string stays empty, and so no valid token: the caller
 * refuses it.
 */
int
outbox_encode_token(const char *in, char *out, size_t out_size)
{
	Sink		sink;

	sink_open(&sink, out, out_size);
	put_token(&sink, in);
	return sink_close(&sink);
}

static size_t
token_length(const char *token)
{
	return strcspn(token, ".");
}

/* The token after this one, or NULL after the last. */
static const char *
next_token(const char *token)
{
	const char *end = token + token_length(token);

	return *end == '.' ? end + 1 : NULL;
}

/* Which placeholder a token is as a whole; PLACEHOLDER_COUNT if none. */
static Placeholder
find_placeholder(const char *token, size_t length)
{
	int			i;

	for (i = 0; i < PLACEHOLDER_COUNT; i++)
	{
		if (strlen(placeholder_names[i]) == length && memcmp(placeholder_names[i], token, length) == 0)
			break;
	}
	return (Placeholder) i;
}

/* What subjects and templates have in common: dots, and names that belong to the server. */
static const char *
check_tokens(const char *subject)
{
	for (const char *token = subject; token != NULL; token = next_token(token))
	{
		if (token_length(token) == 0)
			return "contains an empty token (a leading, trailing or doubled dot)";
	}
	if (subject[0] == '$')
		return "starts with \"$\", which is reserved for the NATS server";
	if (strncmp(subject, "_INBOX", strlen("_INBOX")) == 0)
		return "starts with \"_INBOX\", which is reserved for replies";
	return NULL;
}

const char *
outbox_encode_check_subject(const char *subject)
{
	if (subject[0] == '\0')
		return "is empty";
	if (strlen(subject) > OUTBOX_MAX_SUBJECT)
		return "is longer than " LIMIT_TEXT(OUTBOX_MAX_SUBJECT) " bytes";
	if (!is_utf8(subject))
		return "is not valid UTF-8";
	if (strpbrk(subject, " \t") != NULL)
		return "contains a blank";
	if (contains_control(subject))
		return "contains a control character";
	if (strpbrk(subject, "*>") != NULL)
		return "contains a wildcard";
	return check_tokens(subject);
}

/* A literal token of a template; an empty one has been refused before. */
static const char *
check_literal(const char *token, size_t length)
{
	for (size_t i = 0; i < length; i++)
	{
		unsigned char c = (unsigned char) token[i];

		if (c == ' ' || c == '\t')
			return "contains a blank";
		if (is_control(c))
			return "contains a control character";
		if (c > 0x7e)
			return "contains a character outside ASCII";
		if (c == '*' || c == '>')
			return "contains a wildcard";
		if (c == '{' || c == '}')
			return "contains a brace that is not part of a placeholder, which must be a whole token";
	}
	return NULL;
}

/* One token of a template, of which the ones before had the placeholders marked in seen. */
static const char *
check_template_token(const char *token, size_t length, bool *seen)
{
	Placeholder placeholder = find_placeholder(token, length);

	if (placeholder != PLACEHOLDER_COUNT)
	{
		if (seen[placeholder])
			return "contains a placeholder twice";
		seen[placeholder] = true;
		return NULL;
	}

	/* "{" something without braces "}": meant as a placeholder, but none of ours */
	if (length >= 2 && token[0] == '{' && strcspn(token + 1, "{}.") == length - 2 && token[length - 1] == '}')
		return "contains an unknown placeholder (known are {aggregate_type}, {aggregate_id} and {event_type})";
	return check_literal(token, length);
}

const char *
outbox_encode_check_template(const char *template)
{
	bool		seen[PLACEHOLDER_COUNT] = {false};
	const char *problem;

	if (template[0] == '\0')
		return "is empty";
	if (strlen(template) > OUTBOX_MAX_TEMPLATE)
		return "is longer than " LIMIT_TEXT(OUTBOX_MAX_TEMPLATE) " bytes";
	problem = check_tokens(template);
	if (problem != NULL)
		return problem;

	for (const char *token = template; token != NULL; token = next_token(token))
	{
		problem = check_template_token(token, token_length(token), seen);
		if (problem != NULL)
			return problem;
	}

	/* without a literal start the stream would have to listen to everything */
	if (find_placeholder(template, token_length(template)) != PLACEHOLDER_COUNT)
		return "starts with a placeholder instead of a literal token";
	return NULL;
}

int
outbox_encode_subject(const char *template, const char *aggregate_type, const char *aggregate_id,
					  const char *event_type, char *out, size_t out_size)
{
	const char *const values[PLACEHOLDER_COUNT] = {
		[PLACEHOLDER_AGGREGATE_TYPE] = aggregate_type,
		[PLACEHOLDER_AGGREGATE_ID] = aggregate_id,
		[PLACEHOLDER_EVENT_TYPE] = event_type,
	};
	Sink		sink;

	sink_open(&sink, out, out_size);
	for (const char *token = template; token != NULL; token = next_token(token))
	{
		size_t		length = token_length(token);
		Placeholder placeholder = find_placeholder(token, length);

		if (token != template)
			sink_put(&sink, '.');
		if (placeholder != PLACEHOLDER_COUNT)
			put_token(&sink, values[placeholder]);
		else
			sink_put_bytes(&sink, token, length);
	}
	return sink_close(&sink);
}

int
outbox_encode_stream_subjects(const char *template, char *out, size_t out_size)
{
	Sink		sink;

	sink_open(&sink, out, out_size);
	for (const char *token = template; token != NULL; token = next_token(token))
	{
		size_t		length = token_length(token);

		if (token != template)
			sink_put(&sink, '.');
		if (find_placeholder(token, length) != PLACEHOLDER_COUNT)
		{
			sink_put(&sink, '>');
			break;
		}
		sink_put_bytes(&sink, token, length);
	}
	return sink_close(&sink);
}

/* "tchar" of RFC 9110. A colon or line break in a key would be written raw by nats.c. */
static bool
is_header_key_char(unsigned char c)
{
	return is_ascii_alnum(c) || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

bool
outbox_encode_same_header_key(const char *one, const char *other)
{
	while (*one != '\0' && ascii_lower(*one) == ascii_lower(*other))
	{
		one++;
		other++;
	}
	return ascii_lower(*one) == ascii_lower(*other);
}

const char *
outbox_encode_check_header_key(const char *key)
{
	if (key[0] == '\0')
		return "is empty";
	if (strlen(key) > OUTBOX_MAX_HEADER_KEY)
		return "is longer than " LIMIT_TEXT(OUTBOX_MAX_HEADER_KEY) " bytes";
	for (const char *p = key; *p != '\0'; p++)
	{
		if (!is_header_key_char((unsigned char) *p))
			return "contains a character other than letters, digits and !#$%&'*+-.^_`|~";
	}
	if (starts_with_nocase(key, "nats-") && strcmp(key, OUTBOX_TTL_HEADER) != 0 && strcmp(key, OUTBOX_SCHEDULE_HEADER) != 0)
		return "starts with \"Nats-\", which is reserved for NATS, but for \"" OUTBOX_TTL_HEADER "\" and \"" OUTBOX_SCHEDULE_HEADER "\"";
	if (starts_with_nocase(key, "ce-"))
		return "starts with \"ce-\", which is reserved for CloudEvents attributes";
	if (outbox_encode_same_header_key(key, "Content-Type"))
		return "is reserved: the content type is an argument of its own";
	return NULL;
}

/*
 * Whether valid UTF-8 text of that length starts (or ends) with what some
 * client's trim() takes for white space. Most stop at U+0020, but trim() of
 * JavaScript and strip() of Python remove all of these, the byte order mark
 * and "next line" included.
 */
static bool
has_white_space(const char *text, size_t length, bool at_end)
{
	static const char *const blanks[] = {
		" ", "\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82",
		"\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88",
		"\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
		"\xe3\x80\x80", "\xef\xbb\xbf"};

	for (size_t i = 0; i < sizeof(blanks) / sizeof(blanks[0]); i++)
	{
		size_t		blank_length = strlen(blanks[i]);

		if (blank_length <= length &&
			memcmp(at_end ? text + length - blank_length : text, blanks[i], blank_length) == 0)
			return true;
	}
	return false;
}

/*
 * Only what every receiver hands on unchanged: nats.c turns line breaks into
 * spaces, all clients trim, and some drop a header without a value.
 */
const char *
outbox_encode_check_header_value(const char *value)
{
	size_t		length = strlen(value);

	if (length == 0)
		return "is empty, which some receivers treat as missing";
	if (length > OUTBOX_MAX_HEADER_VALUE)
		return "is longer than " LIMIT_TEXT(OUTBOX_MAX_HEADER_VALUE) " bytes";
	if (!is_utf8(value))
		return "is not valid UTF-8";
	if (contains_control(value))
		return "contains a control character";
	if (has_white_space(value, length, false))
		return "starts with white space, which receivers remove";
	if (has_white_space(value, length, true))
		return "ends with white space, which receivers remove";
	return NULL;
}

/* A number of at most nine digits, or -1; *text moves behind it. */
static int64_t
take_count(const char **text)
{
	int64_t		count = 0;
	int			digits = 0;

	for (; **text >= '0' && **text <= '9'; (*text)++, digits++)
	{
		if (digits == 9)
			return -1;
		count = count * 10 + (**text - '0');
	}
	return digits == 0 ? -1 : count;
}

/*
 * The server takes "never", a number of seconds, or what Go's
 * time.ParseDuration() takes, of at least a second
 * (https://docs.nats.io/learn/jetstream/message-ttl.md). The bound keeps
 * nanoseconds within 63 bits.
 */
const char *
outbox_encode_check_ttl(const char *value)
{
	static const char wrong[] = "is no time to live: \"never\", whole seconds, or hours, minutes and seconds like \"1h30m\"";
	static const char units[] = "hms";
	static const int64_t seconds[] = {3600, 60, 1};
	const char *at = value;
	int64_t		total = 0;
	int			unit = 0;

	if (strcmp(value, "never") == 0)
		return NULL;
	do
	{
		int64_t		count = take_count(&at);

		if (count < 0)
			return wrong;
		/* Without a unit: seconds, and nothing else. */
		if (*at == '\0' && unit == 0)
			total = count;
		else
		{
			while (unit < 3 && units[unit] != *at)
				unit++;
			if (unit == 3)
				return wrong;
			total += count * seconds[unit++];
			at++;
		}
	} while (*at != '\0');
	if (total < 1)
		return "is less than a second";
	return total > OUTBOX_MAX_TTL ? "is more than 999999999 seconds" : NULL;
}

/* The rule of the CloudEvents NATS and HTTP bindings; a decoder undoes it exactly once. */
int
outbox_encode_ce_value(const char *in, char *out, size_t out_size)
{
	Sink		sink;

	sink_open(&sink, out, out_size);
	for (; *in != '\0'; in++)
	{
		unsigned char c = (unsigned char) *in;

		if (c < 0x21 || c > 0x7e || c == '"' || c == '%')
			sink_put_percent(&sink, c);
		else
			sink_put(&sink, *in);
	}
	return sink_close(&sink);
}

/* Division that rounds down, with the remainder never negative: times before 1970 count on. */
static int64_t
floor_divide(int64_t value, int64_t divisor, int64_t *remainder)
{
	int64_t		quotient = value / divisor;

	*remainder = value % divisor;
	if (*remainder < 0)
	{
		*remainder += divisor;
		quotient--;
	}
	return quotient;
}

/*
 * Days since 1970-01-01 to a date of the proleptic Gregorian calendar. Years
 * begin in March here, so that the leap day is the last of its year, and
 * repeat every 400 years of 146097 days.
 */
static void
date_from_days(int64_t days, int *year, int *month, int *day)
{
	int64_t		day_of_era;
	int64_t		era = floor_divide(days + 719468, 146097, &day_of_era); /* from 0000-03-01 */
	int64_t		year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
	int64_t		day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
	int			march_month = (int) ((5 * day_of_year + 2) / 153);	/* 0 is March */

	*day = (int) (day_of_year - (153 * march_month + 2) / 5 + 1);
	*month = march_month < 10 ? march_month + 3 : march_month - 9;
	*year = (int) (era * 400 + year_of_era + (*month <= 2 ? 1 : 0));
}

/* Writes a number with so many digits, and the separator; returns the place behind them. */
static char *
put_number(char *out, int number, int digits, char separator)
{
	out[digits] = separator;
	for (int i = digits - 1; i >= 0; i--)
	{
		out[i] = (char) ('0' + number % 10);
		number /= 10;
	}
	return out + digits + 1;
}

/*
 * RFC 3339 knows the years 0000 to 9999; the others get as many digits as they
 * need, and years before 0 a minus sign. No library call: those depend on the
 * time zone, stop at some year, or take a twelfth of the relay's time.
 */
void
outbox_encode_time(int64_t unix_us, char *out)
{
	int64_t		microsecond;
	int64_t		second_of_day;
	int64_t		seconds = floor_divide(unix_us, MICROSECONDS_PER_SECOND, &microsecond);
	int64_t		days = floor_divide(seconds, SECONDS_PER_DAY, &second_of_day);
	int			year;
	int			month;
	int			day;

	date_from_days(days, &year, &month, &day);
	if (year >= 0 && year <= 9999)
		out = put_number(out, year, 4, '-');
	else
		out += snprintf(out, TIME_BUFFER, "%s%04d-", year < 0 ? "-" : "", year < 0 ? -year : year);
	out = put_number(out, month, 2, '-');
	out = put_number(out, day, 2, 'T');
	out = put_number(out, (int) (second_of_day / 3600), 2, ':');
	out = put_number(out, (int) (second_of_day / 60 % 60), 2, ':');
	out = put_number(out, (int) (second_of_day % 60), 2, '.');
	out = put_number(out, (int) microsecond, 6, 'Z');
	*out = '\0';
}

/* 48 bits of milliseconds, then random bits around the version and the variant. */
void
outbox_encode_uuid7(int64_t unix_us, const uint8_t *random10, uint8_t *uuid)
{
	int64_t		rest;
	uint64_t	milliseconds = (uint64_t) floor_divide(unix_us, 1000, &rest);

	for (int i = 0; i < 6; i++)
		uuid[i] = (uint8_t) (milliseconds >> (40 - 8 * i));
	memcpy(uuid + 6, random10, 10);
	uuid[6] = (uint8_t) (0x70 | (uuid[6] & 0x0f));
	uuid[8] = (uint8_t) (0x80 | (uuid[8] & 0x3f));
}

/* An odd number has an inverse modulo any power of two; each step doubles the bits that are right. */
static uint64_t
inverse(uint64_t odd)
{
	uint64_t	result = odd;

	for (int bits = 3; bits < 64; bits *= 2)
		result *= 2 - odd * result;
	return result;
}

void
outbox_encode_event_id(int64_t unix_us, const uint8_t *random4, int64_t position, uint64_t key, uint8_t *uuid)
{
	uint64_t	low = ((uint64_t) position * (2 * key + 1)) % (uint64_t) OUTBOX_ID_POSITIONS;
	uint8_t		rest[10] = {random4[0], random4[1]};

	low |= ((uint64_t) random4[2] << 54) | ((uint64_t) random4[3] << 46);
	for (int i = 0; i < 8; i++)
		rest[2 + i] = (uint8_t) (low >> (56 - 8 * i));
	outbox_encode_uuid7(unix_us, rest, uuid);
}

int64_t
outbox_encode_id_position(const uint8_t *uuid, uint64_t key)
{
	uint64_t	low = 0;

	if (uuid[6] >> 4 != 7)
		return 0;
	for (int i = 8; i < 16; i++)
		low = low << 8 | uuid[i];
	return (int64_t) (low * inverse(2 * key + 1) % (uint64_t) OUTBOX_ID_POSITIONS);
}

void
outbox_encode_uuid(const uint8_t *uuid, char *out)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < 16; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*out++ = '-';
		*out++ = digits[uuid[i] >> 4];
		*out++ = digits[uuid[i] & 0x0f];
	}
	*out = '\0';
}
