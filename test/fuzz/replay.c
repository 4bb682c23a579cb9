/*
 * replay.c
 *	  main() for a target where the compiler has no libFuzzer: runs it once for
 *	  each file given, and for each file of the folders given.
 */
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static int	inputs;

static void
run_file(const char *path)
{
	FILE	   *file = fopen(path, "rb");
	uint8_t    *data;
	long		size = -1;

	if (file != NULL && fseek(file, 0, SEEK_END) == 0)
		size = ftell(file);
	if (size < 0)
	{
		perror(path);
		exit(1);
	}
	rewind(file);
	data = malloc((size_t) size);
	if (fread(data, 1, (size_t) size, file) != (size_t) size)
	{
		perror(path);
		exit(1);
	}
	fclose(file);
	fprintf(stderr, "Running: %s\n", path);
	(void) LLVMFuzzerTestOneInput(data, (size_t) size);
	inputs++;
	free(data);
}

static void
run_folder(const char *folder)
{
	DIR		   *dir = opendir(folder);
	struct dirent *entry;
	char		path[4096];

	if (dir == NULL)
	{
		perror(folder);
		exit(1);
	}
	while ((entry = readdir(dir)) != NULL)
	{
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		run_file(path);
	}
	closedir(dir);
}

int
main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
	{
		struct stat status;

		if (argv[i][0] == '-')	/* an option of libFuzzer */
			continue;
		if (stat(argv[i], &status) == 0 && S_ISDIR(status.st_mode))
			run_folder(argv[i]);
		else
			run_file(argv[i]);
	}
	return inputs > 0 ? 0 : 1;
}
