/*
 * archive_file_test.c
 *	  The archive's files: what is written is what is read, and what is damaged,
 *	  cut off, mixed up or missing is told from it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "archive_file.h"
#include "archive_write.h"
#include "unit.h"

static char folder[] = "/tmp/outbox-archive-XXXXXX";
static char path[600];
static ArchiveError error;

/* A line with a position, padded to a length. */
static size_t
make_line(char *line, long position, size_t padding)
{
	size_t		length = (size_t) sprintf(line, "{\"position\":%ld,\"x\":\"", position);

	for (size_t i = 0; i < padding; i++)
		line[length++] = (char) ('a' + (char) (rand() % 26));
	length += (size_t) sprintf(line + length, "\"}\n");
	return length;
}

/* Positions 10, 12, ...; padding bytes in each line. Returns whether it worked. */
static bool
write_file(ArchiveCompression compression, int lines, size_t padding, ArchiveManifest *manifest, bool replace)
{
	ArchiveWriter *writer = outbox_archive_create(folder, "outbox-d-", compression, 0600, &error);
	char	   *line = malloc(padding + 100);
	bool		good = writer != NULL;

	memset(manifest, 0, sizeof(*manifest));
	manifest->format_version = ARCHIVE_FORMAT_VERSION;
	strcpy(manifest->database, "d\xc3\xa9 \"\\\n");
	strcpy(manifest->system_identifier, "1");
	strcpy(manifest->first_time, "2026-01-01T00:00:00.000000Z");
	strcpy(manifest->last_time, "2026-01-01T00:00:00.000001Z");
	manifest->range = 3;
	manifest->first_position = 10;
	manifest->last_position = 10 + 2 * (lines - 1);
	manifest->events = lines;
	outbox_archive_name("d", manifest->first_position, manifest->last_position, compression, manifest->file);
	for (int i = 0; good && i < lines; i++)
		good = outbox_archive_write(writer, line, make_line(line, 10 + 2 * i, padding), &error);
	good = good && outbox_archive_finish(writer, manifest, &error) && outbox_archive_publish(writer, manifest, replace, &error);
	outbox_archive_discard(writer);
	free(line);
	snprintf(path, sizeof(path), "%s/%s", folder, manifest->file);
	return good;
}

/* What verify says; "" if it is content. */
static const char *
verdict(void)
{
	ArchiveManifest manifest;

	error.text[0] = '\0';
	if (outbox_archive_manifest_read(path, &manifest, &error))
		outbox_archive_verify(path, &manifest, NULL, NULL, &error);
	return error.text;
}

static void
expect(const char *part, const char *name)
{
	const char *said = verdict();

	ok(part[0] == '\0' ? said[0] == '\0' : strstr(said, part) != NULL, "%s: \"%s\"", name, said);
}

static int
files_in_folder(void)
{
	char		command[700];
	FILE	   *out;
	int			count = -1;

	snprintf(command, sizeof(command), "ls -A %s | wc -l", folder);
	out = popen(command, "r");
	if (fscanf(out, "%d", &count) != 1)
		count = -1;
	pclose(out);
	return count;
}

static off_t
size_of(const char *file)
{
	struct stat status;

	return stat(file, &status) == 0 ? status.st_size : -1;
}

static void
change_byte(off_t offset)
{
	int			fd = open(path, O_RDWR);
	char		byte;

	if (pread(fd, &byte, 1, offset) != 1)
		abort();
	byte = (char) (byte ^ 0x55);
	if (pwrite(fd, &byte, 1, offset) != 1)
		abort();
	close(fd);
}

static void
remove_all(void)
{
	char		command[700];

	snprintf(command, sizeof(command), "rm -rf %s/* %s/.outbox*", folder, folder);
	if (system(command) != 0)
		abort();
}

static bool
count_down(void *arg)
{
	return --*(int *) arg > 0;
}

static void
test_round_trip(ArchiveCompression compression, const char *name)
{
	ArchiveManifest manifest;
	ArchiveManifest back;
	off_t		size;
	int			calls = 3;

	ok(write_file(compression, 5000, 300, &manifest, false), "%s: written", name);
	expect("", name);
	ok(files_in_folder() == 2, "%s: two files, nothing else", name);
	ok(outbox_archive_manifest_read(path, &back, &error) && memcmp(&back, &manifest, sizeof(back)) == 0, "%s: the manifest comes back as it was", name);
	ok(!outbox_archive_verify(path, &manifest, count_down, &calls, &error) && error.kind == ARCHIVE_STOPPED, "%s: stopped when asked", name);
	ok(!write_file(compression, 5000, 300, &manifest, false) && error.system_error == EEXIST, "%s: a file that is there isn't replaced", name);
	expect("", "and is still good");
	ok(files_in_folder() == 2, "and nothing is left behind");
	ok(write_file(compression, 5000, 1, &manifest, true), "%s: replaced if wanted", name);
	expect("", name);

	/* lines longer than all buffers, and blocks that fill them exactly */
	ok(write_file(compression, 4, 3000000, &manifest, true), "%s: long lines", name);
	expect("", name);
	size = size_of(path);
	for (int i = 1; i < 20; i++)
		change_byte(size * i / 20);
	ok(verdict()[0] != '\0', "%s: damaged: %s", name, error.text);
	for (int i = 1; i < 20; i++)
		change_byte(size * i / 20);
	expect("", "and repaired");
	for (off_t cut = size - 1; cut > 0; cut = cut * 2 / 3 - 1)
	{
		const char *line;
		size_t		length;
		ArchiveReader *reader;
		ArchiveRead read;

		if (truncate(path, cut) != 0)
			abort();
		reader = outbox_archive_open(path, &error);
		while ((read = outbox_archive_next(reader, &line, &length, &error)) == ARCHIVE_LINE)
			;
		ok(read == ARCHIVE_FAILED && error.kind == ARCHIVE_DAMAGED, "%s: cut off at %ld: %s", name, (long) cut, error.text);
		outbox_archive_close(reader);
	}
	if (truncate(path, 0) != 0)
		abort();
	expect("bytes, and the manifest says", "empty");
	unlink(path);
	expect("could not open", "missing");
	ok(error.kind == ARCHIVE_MISSING, "known as missing");
	remove_all();
}

/* Every single byte of a small file. */
static void
test_each_byte(ArchiveCompression compression, const char *name)
{
	ArchiveManifest manifest;
	int			unnoticed = 0;

	ok(write_file(compression, 20, 3, &manifest, false), "%s: a small file", name);
	for (off_t i = 0; i < size_of(path); i++)
	{
		change_byte(i);
		unnoticed += verdict()[0] == '\0';
		change_byte(i);
	}
	ok(unnoticed == 0, "%s: each changed byte is noticed", name);
	expect("", name);
	remove_all();
}

/* Good gzip with the wrong lines. */
static void
put_gzip(const char *lines, ArchiveManifest *manifest)
{
	ArchiveWriter *writer = outbox_archive_create(folder, "outbox-d-", ARCHIVE_GZIP, 0600, &error);

	if (!outbox_archive_write(writer, lines, strlen(lines), &error) || !outbox_archive_finish(writer, manifest, &error) ||
		!outbox_archive_publish(writer, manifest, true, &error))
		abort();
	outbox_archive_discard(writer);
}

static void
test_lines(void)
{
	ArchiveManifest manifest;
	static const char *const wrong[][2] = {
		{"{\"position\":10,}\n{\"position\":12,}\n", "it has 2 events"},
		{"{\"position\":10,}\n{\"position\":10,}\n{\"position\":14,}\n", "line 2 has position 10 after 10"},
		{"{\"position\":10,}\n{\"position\":9,}\n{\"position\":14,}\n", "line 2 has position 9 after 10"},
		{"{\"position\":11,}\n{\"position\":12,}\n{\"position\":14,}\n", "it has positions 11 to 14"},
		{"{\"position\":10,}\n{\"position\":12,}\n{\"position\":15,}\n", "it has positions 10 to 15"},
		{"{\"position\":10,}\nx\n{\"position\":14,}\n", "line 2 is not an event"},
		{"{\"position\":10,}\n\n{\"position\":14,}\n", "line 2 is not an event"},
		{"{\"position\":10,}\n{\"position\":99999999999999999999,}\n{\"position\":14,}\n", "line 2 is not an event"},
		{"{\"position\":10,}\n{\"position\":12,\n{\"position\":14,}\n", "line 2 is not an event"},
		{"{\"position\":10,}\n{\"position\":12,}\n{\"position\":14,}", "incomplete"},
		{"{\"position\":10,}\n{\"position\":12,}\n{\"position\":14,}\n", ""}};

	ok(write_file(ARCHIVE_GZIP, 3, 3, &manifest, false), "three lines");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
	{
		put_gzip(wrong[i][0], &manifest);
		expect(wrong[i][1], "lines");
	}
	remove_all();
}

static void
test_manifest(void)
{
	ArchiveManifest manifest;
	ArchiveManifest back;
	char	   *text;
	int			accepted = 0;
	static const char *const changes[][2] = {
		{"\"outbox-archive\"", "\"other\""}, {"\"format_version\": 1", "\"format_version\": 2"}, {"\"events\": 3", "\"events\": 0"},
		{"\"events\": 3", "\"events\": 3.0"}, {"\"events\": 3", "\"events\": 99999999999999999999"}, {"\"events\": 3", "\"events\": \"3\""}, {"\"events\": 3", "\"events\": 9"},
		{"\"first_position\": 10", "\"first_position\": 0"}, {"\"last_position\": 14", "\"last_position\": 9"},
		{"\"sha256\": \"", "\"sha256\": \"0"}, {"\"range\"", "\"events\""}, {"\"range\"", "\"rang\""}, {"{", "["}, {"}", "} x"}, {"}", ",}"}, {"}", ""}};

	ok(write_file(ARCHIVE_GZIP, 3, 3, &manifest, false), "a manifest");
	text = outbox_archive_manifest_text(&manifest);
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
	{
		const char *at = strstr(text, changes[i][0]);
		char	   *changed = NULL;

		if (at == NULL || asprintf(&changed, "%.*s%s%s", (int) (at - text), text, changes[i][1], at + strlen(changes[i][0])) < 0)
			abort();
		ok(!outbox_archive_manifest_parse(changed, &back, &error), "%s instead of %s: %s", changes[i][1], changes[i][0], error.text);
		free(changed);
	}
	for (size_t i = 0; i + 2 < strlen(text); i++)
	{
		char	   *cut = strndup(text, i);

		accepted += outbox_archive_manifest_parse(cut, &back, &error);
		free(cut);
	}
	ok(accepted == 0, "no part of a manifest is one");
	ok(outbox_archive_manifest_parse("{\"more\":null,\"format\":\"outbox-archive\",\"format_version\":1,\"file\":\"\\u0041\\u00e9\\u20ac\\/\",\"database\":\"\",\"system_identifier\":\"\","
									 "\"range\":1,\"first_position\":1,\"last_position\":1,\"first_time\":\"\",\"last_time\":\"\",\"events\":1,\"text_bytes\":1,\"file_bytes\":1,"
									 "\"sha256\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\",\"other\":-1.5e3}",
									 &back, &error),
	   "another order, unknown keys");
	ok(strcmp(back.file, "A\xc3\xa9\xe2\x82\xac/") == 0, "escapes");
	free(text);
	remove_all();
}

static void
test_names(void)
{
	char		name[ARCHIVE_NAME_SIZE];
	char		longest[64];
	int64_t		first;
	int64_t		last;
	ArchiveCompression compression;
	static const char *const bad[] = {"", "outbox-", "outbox-d-1-2.jsonl.gz", "x-d-00000000000000000001-00000000000000000002.jsonl.gz",
		"outbox-d-00000000000000000001-00000000000000000002.jsonl", "outbox-d-00000000000000000001-00000000000000000002.manifest.json",
		"outbox-d-0000000000000000000x-00000000000000000002.jsonl.gz", "outbox-d-99999999999999999999-99999999999999999999.jsonl.gz"};

	outbox_archive_name("a-b\xc3\xa9/", 1, INT64_MAX, ARCHIVE_ZSTD, name);
	ok(strcmp(name, "outbox-a%2Db%C3%A9%2F-00000000000000000001-09223372036854775807.jsonl.zst") == 0, "%s", name);
	ok(outbox_archive_parse_name(name, &first, &last, &compression) && first == 1 && last == INT64_MAX && compression == ARCHIVE_ZSTD, "and read again");
	memset(longest, 0xff, 63);
	longest[63] = '\0';
	outbox_archive_name(longest, 1, 2, ARCHIVE_GZIP, name);
	ok(outbox_archive_parse_name(name, &first, &last, NULL) && first == 1 && last == 2, "the longest name of a database");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ok(!outbox_archive_parse_name(bad[i], NULL, NULL, NULL), "\"%s\" is none", bad[i]);
}

/* What is in the way of writing. */
static void
test_trouble(void)
{
	ArchiveManifest manifest;
	struct rlimit limit;
	char		other[700];

	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &limit);
	ok(setrlimit(RLIMIT_FSIZE, &(struct rlimit) {1000000, limit.rlim_max}) == 0, "no large files");
	ok(!write_file(ARCHIVE_GZIP, 5000, 1000, &manifest, false) && error.system_error == EFBIG, "no room: %s", error.text);
	ok(files_in_folder() == 0, "nothing is left behind");
	setrlimit(RLIMIT_FSIZE, &limit);

	ok(chmod(folder, 0777) == 0 && !write_file(ARCHIVE_GZIP, 1, 1, &manifest, false), "a directory for everybody: %s", error.text);
	ok(strstr(error.text, "mode 0777") != NULL, "it says so");
	chmod(folder, 0700);
	if (geteuid() != 0)
	{
		chmod(folder, 0500);
		ok(!write_file(ARCHIVE_GZIP, 1, 1, &manifest, false) && error.system_error == EACCES, "a directory that can't be written to: %s", error.text);
		chmod(folder, 0700);
	}
	ok(!outbox_archive_check_directory("relative", &error), "a relative path: %s", error.text);
	snprintf(other, sizeof(other), "%s/none", folder);
	ok(!outbox_archive_check_directory(other, &error) && error.system_error == ENOENT, "no directory: %s", error.text);
	ok(!outbox_archive_check_directory("/dev/null", &error) && error.system_error == ENOTDIR, "none at all: %s", error.text);

	snprintf(other, sizeof(other), "%s/.outbox-d-file-1-2.tmp", folder);
	close(open(other, O_CREAT | O_WRONLY, 0600));
	outbox_archive_sweep(folder, "outbox-d-");
	ok(access(other, F_OK) == 0, "a young file is somebody's");
	utimensat(AT_FDCWD, other, (struct timespec[2]) {{1000, 0}, {1000, 0}}, 0);
	outbox_archive_sweep(folder, "outbox-e-");
	ok(access(other, F_OK) == 0, "another database's, too");
	outbox_archive_sweep(folder, "outbox-d-");
	ok(access(other, F_OK) != 0, "an old one is swept away");

	ok(write_file(ARCHIVE_GZIP, 1, 1, &manifest, false) && outbox_archive_remove(folder, manifest.file, &error) && files_in_folder() == 0, "removed");
	ok(outbox_archive_remove(folder, manifest.file, &error), "removed again");
}

int
main(void)
{
	if (mkdtemp(folder) == NULL)
		return 1;
	test_names();
	test_round_trip(ARCHIVE_GZIP, "gzip");
	test_round_trip(ARCHIVE_ZSTD, "zstd");
	test_each_byte(ARCHIVE_GZIP, "gzip");
	test_each_byte(ARCHIVE_ZSTD, "zstd");
	test_lines();
	test_manifest();
	test_trouble();
	remove_all();
	rmdir(folder);
	return unit_done();
}
