/*
 * pg_shmem.c
 *	  The shared memory of the server, and what the checks want to see in it.
 */
#include "pg.h"

#include "storage/shmem.h"

shmem_request_hook_type shmem_request_hook;
shmem_startup_hook_type shmem_startup_hook;

static LWLockPadded main_locks[100];
LWLockPadded *MainLWLockArray = main_locks;

static char *shared_outbox;
static char *shared_locks;

static void *
fresh(char **memory, Size size)
{
	static Size sizes[2];
	Size	   *had = memory == &shared_outbox ? &sizes[0] : &sizes[1];

	if (*had < size)
	{
		free(*memory);
		*memory = malloc(size);
		*had = size;
	}
	memset(*memory, 0, size);
	return *memory;
}

static bool has_outbox;
static bool has_locks;

void *
ShmemInitStruct(const char *name, Size size, bool *foundPtr)
{
	bool		outbox = strcmp(name, "outbox") == 0;
	char	  **memory = outbox ? &shared_outbox : &shared_locks;
	bool	   *has = outbox ? &has_outbox : &has_locks;

	*foundPtr = *has;
	if (!*has)
		(void) fresh(memory, size);
	*has = true;
	return *memory;
}

OutboxDatabase *
sim_database(void)
{
	OutboxShared *shared = (OutboxShared *) shared_outbox;

	return has_outbox && shared->databases[0].dboid == SIM_DATABASE ? &shared->databases[0] : NULL;
}

void
sim_pg_server_start(void)
{
	has_outbox = has_locks = false;
	memset(main_locks, 0, sizeof(main_locks));
	sim_locks_reset();
}

bool
sim_pg_is_owner(SimProc *proc, uint64_t slots)
{
	OutboxDatabase *database = sim_database();
	const SlotTable *table = database == NULL ? NULL : &database->slots;

	if (table == NULL || table->members[proc->place].epoch == 0 ||
		(int) pg_atomic_read_u32(&database->places[proc->place].pid) != SIM_FIRST_PID + proc->index)
		return false;
	for (int i = 0; i < OUTBOX_SLOTS; i++)
	{
		if ((slots >> i & 1) && table->owner[i] != proc->place)
			return false;
	}
	return true;
}

void
sim_pg_check_end(void)
{
	OutboxDatabase *database = sim_database();
	const OutboxShared *shared = (const OutboxShared *) shared_outbox;

	for (int i = 0; database != NULL && i < OUTBOX_CLAIMS; i++)
	{
		if (pg_atomic_read_u64(&database->claimed[i]) != 0)
			sim_fail("position %lld is still noted as handed to the broker",
					 (long long) pg_atomic_read_u64(&database->claimed[i]));
	}
	for (int i = 0; database != NULL && i < shared->backend_count; i++)
	{
		if (pg_atomic_read_u64(&shared->backends[i].bound) != 0)
			sim_fail("process %d still announces a bound", i);
	}
}

Size
add_size(Size s1, Size s2)
{
	return s1 + s2;
}

Size
mul_size(Size s1, Size s2)
{
	return s1 * s2;
}

void
RequestAddinShmemSpace(Size size)
{
}

Size
outbox_test_shmem_size(void)
{
	return 0;
}

void
outbox_test_shmem_init(void)
{
}
