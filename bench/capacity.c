/*
 * capacity.c
 *	  How many events a second would it be, with so many cores, relays, streams,
 *	  aggregates, and such a network? A simulation of the pipeline, for machines
 *	  that one doesn't have; bench/run compares it with the one that it has.
 *
 * What takes part: writers, relays and streams of the server, each a station that
 * does one thing at a time, first come first served; all busy ones share the cores.
 * One that had nothing to do begins a little later. Between relay and stream
 * lies half a round trip each way. As in the relay, an aggregate's next event goes out when the one before it is acknowledged, no
 * more than the window is in flight, and acknowledgements are taken first.
 *
 * Without --rate a backlog is drained, else events come at random times at that
 * rate, and take a writer's time first. One line of key=value on stdout; bound_by
 * names what is busy to 90 %, or what it waits for.
 */
#define _DEFAULT_SOURCE
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STATIONS 256
#define BUSY 0.9

/* So many are read, worked off and passed on together: nats-server reads 64 KB at most at a time. */
#define BURST 64

typedef enum Kind
{
	WRITER,
	RELAY,
	STREAM,
	KINDS
} Kind;

static const char *const kind_names[KINDS] = {"writers", "relay", "stream"};

static struct
{
	long		count[KINDS];
	double		us[KINDS];		/* CPU time of an event */
	double		ack_share;		/* of the relay's, for the acknowledgement */
	long		cores;
	long		aggregates;
	long		window;			/* of each relay */
	long		events;
	double		round_trip_us;	/* on the way, both ways together */
	double		wake_us;		/* until one that had nothing to do begins */
	double		rate;			/* events a second; 0: a backlog */
	unsigned	seed;
} options = {{4, 1, 1}, {60, 19, 21}, 0.3, 2, 10000, 1024, 200000, 0, 50, 0, 1};

/* ------------------------------------------------------------------ queues */

typedef struct Queue
{
	int		   *items;			/* a ring */
	int			size;
	int			first;
	int			count;
} Queue;

static void *
allocate(size_t count, size_t size)
{
	void	   *memory = calloc(count, size);

	if (memory == NULL)
	{
		fputs("capacity: out of memory\n", stderr);
		exit(1);
	}
	return memory;
}

static void
put(Queue *queue, int item)
{
	if (queue->count == queue->size)
	{
		int			size = queue->size == 0 ? 64 : queue->size * 2;
		int		   *items = allocate(size, sizeof(int));

		for (int i = 0; i < queue->count; i++)
			items[i] = queue->items[(queue->first + i) % queue->size];
		free(queue->items);
		*queue = (Queue) {items, size, 0, queue->count};
	}
	queue->items[(queue->first + queue->count++) % queue->size] = item;
}

static int
take(Queue *queue)
{
	int			item = queue->items[queue->first];

	queue->first = (queue->first + 1) % queue->size;
	queue->count--;
	return item;
}

/* ----------------------------------------------------------------- stations */

typedef struct Station
{
	Kind		kind;
	double		left;			/* CPU time that its burst still needs; < 0: it has none */
	double		busy;			/* time with work, so far */
	int			events[BURST];
	int			burst;
	bool		is_ack;
	bool		sleeps;			/* had nothing to do when it looked */
	Queue		jobs;			/* events; a relay's: aggregates with a head to be sent */
	Queue		acks;
	long		in_flight;
} Station;

typedef struct Aggregate
{
	Queue		waiting;		/* behind the one that is ready or in flight */
	bool		has_head;
} Aggregate;

/* What is on its way, in the order in which it arrives: every way takes the same time. */
typedef struct Way
{
	Queue		events;
	double	   *at;				/* by event */
} Way;

static Station stations[MAX_STATIONS];
static int station_count;
static Station *first_of[KINDS];
static Aggregate *aggregates;
static int *aggregate_of;
static double *came_at;
static double *latency;
static long done;
static long window_full; /* times that a relay had more to send */
static long sent;
static double crowded_us; /* time in which more had work than there are cores */
static Way to_stream;
static Way to_relay;

static Station *
station_for(Kind kind, int number)
{
	return first_of[kind] + number % options.count[kind];
}

/* Takes a burst of what waits there, most of it. */
static void
start(Station *station, double us, Queue *from, long most)
{
	station->burst = 0;
	while (from->count > 0 && station->burst < BURST && station->burst < most)
		station->events[station->burst++] = take(from);
	station->left = us * station->burst + (station->sleeps ? options.wake_us : 0);
}

/* Takes up the next burst, if there is one. */
static void
look_for_work(Station *station)
{
	double		us = options.us[station->kind];

	if (station->left >= 0)
		return;
	station->is_ack = station->acks.count > 0;
	if (station->is_ack)
		start(station, us * options.ack_share, &station->acks, BURST);
	else if (station->jobs.count > 0 && station->kind != RELAY)
		start(station, us, &station->jobs, station->kind == WRITER ? 1 : BURST);
	else if (station->jobs.count > 0 && station->in_flight < options.window)
	{
		start(station, us * (1 - options.ack_share), &station->jobs, options.window - station->in_flight);
		station->in_flight += station->burst;
		sent += station->burst;
		if (station->in_flight == options.window)
			window_full += station->burst;
	}
	station->sleeps = station->left < 0;
}

/* An event is committed. */
static void
commit(int event, double now)
{
	Aggregate  *aggregate = &aggregates[aggregate_of[event]];

	came_at[event] = now;
	if (aggregate->has_head)
		put(&aggregate->waiting, event);
	else
	{
		aggregate->has_head = true;
		put(&station_for(RELAY, aggregate_of[event])->jobs, event);
	}
}

static void
acknowledged(Station *relay, int event, double now)
{
	Aggregate  *aggregate = &aggregates[aggregate_of[event]];

	latency[done++] = now - came_at[event];
	relay->in_flight--;
	aggregate->has_head = aggregate->waiting.count > 0;
	if (aggregate->has_head)
		put(&relay->jobs, take(&aggregate->waiting));
}

static void
leave(Way *way, int event, double now)
{
	way->at[event] = now + options.round_trip_us / 2;
	put(&way->events, event);
}

static void
finish(Station *station, double now)
{
	station->left = -1;
	for (int i = 0; i < station->burst; i++)
	{
		int			event = station->events[i];

		if (station->kind == WRITER)
			commit(event, now);
		else if (station->kind == STREAM)
			leave(&to_relay, event, now);
		else if (station->is_ack)
			acknowledged(station, event, now);
		else
			leave(&to_stream, event, now);
	}
}

/* --------------------------------------------------------------- simulation */

static double
uniform(void)
{
	return (rand_r(&options.seed) + 0.5) / (RAND_MAX + 1.0);
}

static double
arrival_of(const Way *way)
{
	return way->events.count == 0 ? INFINITY : way->at[way->events.items[way->events.first]];
}

/* Those that have a job share the cores. */
static double
speed(void)
{
	int			busy = 0;

	for (int i = 0; i < station_count; i++)
		busy += stations[i].left >= 0;
	return busy <= options.cores ? 1 : (double) options.cores / busy;
}

/* Lets time pass up to a moment at which something happens; until: no later than that. */
static double
pass_time(double now, double until)
{
	double		rate = speed();
	double		elapsed = until - now;

	for (int i = 0; i < station_count; i++)
	{
		if (stations[i].left >= 0 && stations[i].left / rate < elapsed)
			elapsed = stations[i].left / rate;
	}
	if (rate < 1)
		crowded_us += elapsed;
	for (int i = 0; i < station_count; i++)
	{
		if (stations[i].left < 0)
			continue;
		stations[i].busy += elapsed;
		stations[i].left -= elapsed * rate;
		if (stations[i].left < 1e-9)
			stations[i].left = 0;
	}
	return now + elapsed;
}

/* Returns the time it took, in us. */
static double
simulate(void)
{
	double		now = 0;
	double		next_event = options.rate > 0 ? 0 : INFINITY;
	int			made = 0;

	if (options.rate == 0)
	{
		for (; made < options.events; made++)
			commit(made, 0);
	}
	while (done < options.events)
	{
		for (int i = 0; i < station_count; i++)
			look_for_work(&stations[i]);
		now = pass_time(now, fmin(next_event, fmin(arrival_of(&to_stream), arrival_of(&to_relay))));
		for (int i = 0; i < station_count; i++)
		{
			if (stations[i].left == 0)
				finish(&stations[i], now);
		}
		while (arrival_of(&to_stream) <= now)
		{
			int			event = take(&to_stream.events);

			put(&station_for(STREAM, aggregate_of[event])->jobs, event);
		}
		while (arrival_of(&to_relay) <= now)
		{
			int			event = take(&to_relay.events);

			put(&station_for(RELAY, aggregate_of[event])->acks, event);
		}
		if (next_event <= now)
		{
			put(&station_for(WRITER, made)->jobs, made);
			made++;
			next_event = made < options.events ? now - log(uniform()) * 1e6 / options.rate : INFINITY;
		}
	}
	return now;
}

static double
utilisation(Kind kind, double time)
{
	double		busy = 0;

	for (int i = 0; i < options.count[kind]; i++)
		busy += first_of[kind][i].busy;
	return busy / time / options.count[kind];
}

static const char *
bound_by(double time)
{
	Kind		busiest = WRITER;

	for (int kind = 0; kind < KINDS; kind++)
	{
		if (utilisation(kind, time) > utilisation(busiest, time))
			busiest = kind;
	}
	/* Waiting for a core looks like work. */
	if (crowded_us > time / 2)
		return "cores";
	if (utilisation(busiest, time) >= BUSY)
		return kind_names[busiest];
	if (options.rate > 0)
		return "rate";
	return window_full > sent / 2 ? "window" : "aggregates";
}

static int
compare(const void *a, const void *b)
{
	return (*(const double *) a > *(const double *) b) - (*(const double *) a < *(const double *) b);
}

static void
report(double time)
{
	qsort(latency, done, sizeof(double), compare);
	printf("events_per_s=%.0f bound_by=%s relay_busy=%.2f stream_busy=%.2f", done / time * 1e6, bound_by(time),
		   utilisation(RELAY, time), utilisation(STREAM, time));
	if (options.rate > 0)
		printf(" p50_us=%.0f p99_us=%.0f", latency[done / 2], latency[(long) (done * 0.99)]);
	puts("");
}

/* ------------------------------------------------------------------ options */

static void
usage(int status)
{
	fprintf(status == 0 ? stdout : stderr,
			"usage: capacity [OPTION N]...\n"
			"  --cores N            that all share (2)\n"
			"  --relays N           (1)     --relay-us US    CPU time of an event in the relay (19)\n"
			"  --streams N          (1)     --stream-us US   in the server, one thread a stream (21)\n"
			"  --writers N          (4)     --writer-us US   in the session that enqueues (60)\n"
			"  --window N           outbox.max_in_flight (1024)\n"
			"  --aggregates N       (10000)\n"
			"  --round-trip-us US   between relay and server, without their work (0)\n"
			"  --wake-us US         until one that had nothing to do begins (50)\n"
			"  --events N           (200000)\n"
			"  --rate N             events a second that come, instead of a backlog\n"
			"  --seed N             (1)\n");
	exit(status);
}

static double
number(const char *text, double least)
{
	char	   *end;
	double		value = strtod(text, &end);

	if (end == text || *end != '\0' || !(value >= least && value <= 1e9))
	{
		fprintf(stderr, "capacity: \"%s\" is not a number of at least %g\n", text, least);
		exit(2);
	}
	return value;
}

static void
parse_options(int argc, char **argv)
{
	static const struct option names[] = {
		{"cores", required_argument, NULL, 'c'}, {"relays", required_argument, NULL, 'r'}, {"relay-us", required_argument, NULL, 'R'}, {"streams", required_argument, NULL, 's'}, {"stream-us", required_argument, NULL, 'S'}, {"writers", required_argument, NULL, 'w'}, {"writer-us", required_argument, NULL, 'W'}, {"window", required_argument, NULL, 'n'}, {"aggregates", required_argument, NULL, 'a'}, {"round-trip-us", required_argument, NULL, 't'}, {"wake-us", required_argument, NULL, 'u'}, {"events", required_argument, NULL, 'e'}, {"rate", required_argument, NULL, 'q'}, {"seed", required_argument, NULL, 'x'}, {"help", no_argument, NULL, 'h'}, {0}};
	int			option;

	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1)
	{
		switch (option)
		{
			case 'c': options.cores = (long) number(optarg, 1); break;
			case 'r': options.count[RELAY] = (long) number(optarg, 1); break;
			case 'R': options.us[RELAY] = number(optarg, 0.001); break;
			case 's': options.count[STREAM] = (long) number(optarg, 1); break;
			case 'S': options.us[STREAM] = number(optarg, 0.001); break;
			case 'w': options.count[WRITER] = (long) number(optarg, 1); break;
			case 'W': options.us[WRITER] = number(optarg, 0.001); break;
			case 'n': options.window = (long) number(optarg, 1); break;
			case 'a': options.aggregates = (long) number(optarg, 1); break;
			case 't': options.round_trip_us = number(optarg, 0); break;
			case 'u': options.wake_us = number(optarg, 0); break;
			case 'e': options.events = (long) number(optarg, 1); break;
			case 'q': options.rate = number(optarg, 1); break;
			case 'x': options.seed = (unsigned) number(optarg, 0); break;
			case 'h': usage(0); break;
			default: usage(2);
		}
	}
	if (optind < argc || options.count[WRITER] + options.count[RELAY] + options.count[STREAM] > MAX_STATIONS)
		usage(2);
}

int
main(int argc, char **argv)
{
	parse_options(argc, argv);
	for (int kind = 0; kind < KINDS; kind++)
	{
		first_of[kind] = &stations[station_count];
		for (int i = 0; i < options.count[kind]; i++)
			stations[station_count++] = (Station) {.kind = kind, .left = -1};
	}
	aggregates = allocate(options.aggregates, sizeof(Aggregate));
	aggregate_of = allocate(options.events, sizeof(int));
	came_at = allocate(options.events, sizeof(double));
	latency = allocate(options.events, sizeof(double));
	to_stream.at = allocate(options.events, sizeof(double));
	to_relay.at = allocate(options.events, sizeof(double));
	for (long i = 0; i < options.events; i++)
		aggregate_of[i] = (int) (options.rate > 0 ? uniform() * options.aggregates : i % options.aggregates);
	report(simulate());
	return 0;
}
