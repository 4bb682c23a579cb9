/*
 * template_fuzz.c
 *	  Subject templates (src/encode.c): which are accepted, and that each of
 *	  those makes of any three values a subject that one can publish to, that
 *	  the created stream listens to, and that can be read back.
 *
 * Input: template, then aggregate_type, aggregate_id and event_type, then the
 * same three of another event, with NULs between.
 */
#include <string.h>

#include "encode.h"
#include "fuzz.h"
#include "reference.h"

#define VALUES 3

static const char *const names[VALUES] = {"{aggregate_type}", "{aggregate_id}", "{event_type}"};
static const size_t limits[VALUES] = {OUTBOX_MAX_AGGREGATE_TYPE, OUTBOX_MAX_AGGREGATE_ID, OUTBOX_MAX_EVENT_TYPE};

typedef struct Values
{
	char	   *text[VALUES];
} Values;

/* Which value a token stands for, or -1. */
static int
value_of_token(const char *token, size_t length)
{
	for (int i = 0; i < VALUES; i++)
	{
		if (strlen(names[i]) == length && strncmp(token, names[i], length) == 0)
			return i;
	}
	return -1;
}

static bool
valid_literal(const char *token, size_t length)
{
	for (size_t i = 0; i < length; i++)
	{
		if (token[i] <= ' ' || token[i] > '~' || strchr("*>{}", token[i]) != NULL)
			return false;
	}
	return length > 0;
}

/* The rule of encode.h, once more. */
static bool
valid_template(const char *template)
{
	int			count[VALUES] = {0};
	const char *token = template;

	if (strlen(template) > OUTBOX_MAX_TEMPLATE || template[0] == '$' || strncmp(template, "_INBOX", 6) == 0)
		return false;
	for (;;)
	{
		size_t		length = strcspn(token, ".");
		int			value = value_of_token(token, length);

		if (value >= 0 ? token == template || ++count[value] > 1 : !valid_literal(token, length))
			return false;
		if (token[length] == '\0')
			return true;
		token += length + 1;
	}
}

static Values
take_values(FuzzInput *input)
{
	Values		values;

	for (int i = 0; i < VALUES; i++)
		values.text[i] = fuzz_take_text(input);
	return values;
}

static void
free_values(Values *values)
{
	for (int i = 0; i < VALUES; i++)
		free(values->text[i]);
}

/* What event_check.c lets pass. */
static bool
valid_values(const Values *values)
{
	for (int i = 0; i < VALUES; i++)
	{
		if (values->text[i][0] == '\0' || strlen(values->text[i]) > limits[i])
			return false;
	}
	return true;
}

static int
expand(const char *template, const Values *values, char *out, size_t size)
{
	return outbox_encode_subject(template, values->text[0], values->text[1], values->text[2], out, size);
}

static bool
plain(unsigned char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Token by token: a literal is itself, a placeholder is its value. */
static void
read_back(const char *template, const char *subject, const Values *values)
{
	for (;;)
	{
		size_t		wanted = strcspn(template, ".");
		size_t		length = strcspn(subject, ".");
		int			value = value_of_token(template, wanted);

		if (value >= 0)
		{
			char	   *decoded = reference_decode(subject, length, plain);

			property(decoded != NULL && strcmp(decoded, values->text[value]) == 0);
			free(decoded);
		}
		else
			property(wanted == length && memcmp(template, subject, length) == 0);
		property((template[wanted] == '\0') == (subject[length] == '\0'));
		if (subject[length] == '\0')
			return;
		template += wanted + 1;
		subject += length + 1;
	}
}

static void
check_subject(const char *template, const Values *values)
{
	char		stream[OUTBOX_MAX_TEMPLATE + 1];
	char		subject[OUTBOX_SUBJECT_BUFFER];
	int			length = expand(template, values, subject, sizeof(subject));
	char	   *exact;

	property(length > 0 && (size_t) length == strlen(subject));
	property(reference_publishable(subject));
	property(subject[0] != '$' && strncmp(subject, "_INBOX", 6) != 0);
	if (length <= OUTBOX_MAX_SUBJECT)
		property(outbox_encode_check_subject(subject) == NULL);
	read_back(template, subject, values);
	property(outbox_encode_stream_subjects(template, stream, sizeof(stream)) > 0);
	property(reference_matches(stream, subject));

	exact = malloc((size_t) length + 1);
	property(expand(template, values, exact, (size_t) length + 1) == length && strcmp(exact, subject) == 0);
	free(exact);
	exact = malloc((size_t) length);
	property(expand(template, values, exact, (size_t) length) == -1 && exact[0] == '\0');
	free(exact);
}

/* Two events have one subject if and only if they agree in all that the template shows. */
static void
check_injective(const char *template, const Values *one, const Values *other)
{
	char		subject[OUTBOX_SUBJECT_BUFFER];
	char		other_subject[OUTBOX_SUBJECT_BUFFER];
	bool		same = true;

	for (int i = 0; i < VALUES; i++)
	{
		if (strstr(template, names[i]) != NULL && strcmp(one->text[i], other->text[i]) != 0)
			same = false;
	}
	property(expand(template, one, subject, sizeof(subject)) > 0);
	property(expand(template, other, other_subject, sizeof(other_subject)) > 0);
	property((strcmp(subject, other_subject) == 0) == same);
}

/* The value is what another one is encoded as: nearest to a collision. */
static void
check_encoded_twice(const char *template, const Values *values)
{
	for (int i = 0; i < VALUES; i++)
	{
		Values		other = *values;
		char		token[3 * OUTBOX_MAX_AGGREGATE_ID + 1];

		property(outbox_encode_token(values->text[i], token, sizeof(token)) > 0);
		other.text[i] = token;
		if (valid_values(&other))
			check_injective(template, values, &other);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	char	   *template = fuzz_take_text(&input);
	Values		values = take_values(&input);
	Values		other = take_values(&input);
	bool		accepted = outbox_encode_check_template(template) == NULL;

	property(accepted == valid_template(template));
	if (accepted && valid_values(&values))
	{
		check_subject(template, &values);
		check_encoded_twice(template, &values);
		if (valid_values(&other))
			check_injective(template, &values, &other);
	}
	free_values(&other);
	free_values(&values);
	free(template);
	return 0;
}
