# shellcheck shell=bash
# What scripts/demo, scripts/test and bench/run share: packages, a build in a
# copy of the checkout, private servers, and cleaning up whatever happens.
#
# The caller sets -euo pipefail, calls make_work_folder first, and may define a
# function at_exit. All that is started here is ended by its process id, and
# all files are in $WORK, which is removed at the end unless KEEP=1.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
WORK=
KEEP=${KEEP:-0}
PG_CONFIG=${PG_CONFIG:-}
PG_BIN=
PG_DATA=
PG_PORT=
NATS_PID=
NATS_PORT=
CHILD=
BESIDE=

# nats-server lives in /usr/sbin.
PATH=$PATH:/usr/sbin:/sbin
unset LC_ALL PGHOST PGPORT PGUSER PGDATABASE PGOPTIONS PGSERVICE PGPASSFILE NATS_URL MAKEFLAGS
export LANG=C.UTF-8

# ----------------------------------------------------------------- output

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
	BOLD=$'\e[1m' RED=$'\e[31m' GREEN=$'\e[32m' PLAIN=$'\e[0m'
else
	BOLD='' RED='' GREEN='' PLAIN=''
fi

say() { printf '%s\n' "$*"; }
title() { printf '\n%s%s%s\n' "$BOLD" "$*" "$PLAIN"; }

die() {
	printf '%s: %s\n' "$(basename "$0")" "$*" >&2
	exit 1
}

# Runs a command quietly; shows its output if it fails.
quietly() {
	local log status=0
	log=$(mktemp "${WORK:-${TMPDIR:-/tmp}}/quiet.XXXXXX")
	run_child "$@" >"$log" 2>&1 || status=$?
	[ "$status" = 0 ] || { printf '%s\n' "failed: $*" >&2; tail -n 60 "$log" >&2; }
	rm -f "$log"
	return "$status"
}

# -------------------------------------------------------------- processes

# Runs a program in a process group of its own and waits for it. Unlike a plain
# call, a signal to this script interrupts the wait, and clean_up ends the group.
run_child() {
	local status=0
	setsid "$@" <"${STDIN:-/dev/null}" &
	CHILD=$!
	wait "$CHILD" || status=$?
	CHILD=
	return "$status"
}

# Starts a program in the same way, to "wait $BESIDE" for it later. There can be one.
start_beside() {
	setsid "$@" </dev/null &
	BESIDE=$!
}

# Tests take their own servers down when they get SIGTERM: give them time.
end_child() {
	[ -n "$1" ] || return 0
	kill -TERM -- "-$1" 2>/dev/null || return 0
	for ((i = 0; i < 300; i++)); do
		kill -0 -- "-$1" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -KILL -- "-$1" 2>/dev/null || true
}

# Words to put in front of a command so that it runs as postgres, as neither the
# server nor its tests run as root. setpriv becomes the command: $! is its pid.
AS_POSTGRES=()
set_as_postgres() {
	[ "$EUID" = 0 ] || return 0
	AS_POSTGRES=(setpriv --reuid=postgres --regid=postgres --init-groups
		env "HOME=$WORK" USER=postgres LOGNAME=postgres)
}

give_to_postgres() { [ "$EUID" != 0 ] || chown -R postgres: "$@"; }

clean_up() {
	local status=$?
	trap '' INT TERM HUP
	set +e
	end_child "$CHILD"
	end_child "$BESIDE"
	if [ "$KEEP" != 1 ]; then
		if declare -F at_exit >/dev/null; then at_exit; fi
		stop_postgres
		stop_nats
		cd /
		[ -z "$WORK" ] || rm -rf "$WORK"
	fi
	exit "$status"
}

# The folder of this run; servers and tests, which are not root, can use it.
make_work_folder() {
	trap clean_up EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 129' HUP
	WORK=$(mktemp -d "${TMPDIR:-/tmp}/outbox-$1.XXXXXX")
	chmod 755 "$WORK"
}

# --------------------------------------------------------------- packages

MISSING=()
APT_UPDATED=0

# need PACKAGE COMMAND-OR-FILE...: remembers the package unless one of them exists.
need() {
	local package=$1 what
	shift
	for what in "$@"; do
		case $what in
			/*) compgen -G "$what" >/dev/null && return 0 ;;
			*) command -v "$what" >/dev/null && return 0 ;;
		esac
	done
	MISSING+=("$package")
}

apt_update() {
	[ "$APT_UPDATED" = 0 ] || return 0
	[ "$EUID" = 0 ] || die "packages are missing, and only root can install them: ${MISSING[*]}"
	command -v apt-get >/dev/null || die "packages are missing, and there is no apt-get: ${MISSING[*]}"
	DEBIAN_FRONTEND=noninteractive quietly apt-get -q update
	APT_UPDATED=1
}

# Installs what need() found missing. Meanwhile no service starts, and
# postgresql-common makes no cluster: these would be of no use here.
install_missing() {
	local policy=/usr/sbin/policy-rc.d no_cluster=/etc/postgresql-common/createcluster.d/outbox-none.conf
	local status=0
	[ ${#MISSING[@]} -gt 0 ] || return 0
	apt_update
	say "installing: ${MISSING[*]}"
	mkdir -p "$(dirname "$no_cluster")"
	echo 'create_main_cluster = false' >"$no_cluster"
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	else
		policy=
	fi
	DEBIAN_FRONTEND=noninteractive quietly apt-get -q -y --no-install-recommends \
		-o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold install "${MISSING[@]}" || status=$?
	rm -f "$no_cluster" ${policy:+"$policy"}
	MISSING=()
	[ "$status" = 0 ] || die 'could not install the packages'
}

# A server installed already, with or without its headers; else Debian's default.
postgresql_major() {
	local major
	major=$(find /usr/lib/postgresql -mindepth 3 -maxdepth 3 -path '*/bin/postgres' 2>/dev/null |
		cut -d/ -f5 | sort -n | tail -n 1)
	if [ -z "$major" ]; then
		major=$(apt-cache depends postgresql 2>/dev/null | sed -n 's/.*Depends: postgresql-\([0-9]\+\)$/\1/p' | head -n 1)
	fi
	printf '%s' "$major"
}

# True if $1 is the pg_config of a server that extensions can be built for. Debian's
# postgresql-client-NN has pg_config and pgxs.mk, too, without the headers.
usable_pg_config() {
	[ -x "$1" ] && [ -e "$("$1" --pgxs)" ] && [ -e "$("$1" --includedir-server)/postgres.h" ] && [ -x "$("$1" --bindir)/postgres" ]
}

find_pg_config() {
	local candidate
	if [ -n "$PG_CONFIG" ]; then
		usable_pg_config "$PG_CONFIG" || die "$PG_CONFIG: no server, or not its headers and PGXS"
		return 0
	fi
	candidate=/usr/lib/postgresql/$(postgresql_major)/bin/pg_config
	if usable_pg_config "$candidate"; then
		PG_CONFIG=$candidate
	elif candidate=$(command -v pg_config) && usable_pg_config "$candidate"; then
		PG_CONFIG=$candidate
	fi
	[ -n "$PG_CONFIG" ]
}

# What it takes to build and run the extension, and then the packages given as
# "PACKAGE COMMAND-OR-FILE...".
prepare_packages() {
	local line major
	need make make
	need gcc gcc
	need libc6-dev /usr/include/stdio.h
	need libnats-dev /usr/include/nats/nats.h /usr/local/include/nats/nats.h
	need nats-server nats-server
	need libpq-dev /usr/include/postgresql/libpq-fe.h /usr/local/include/libpq-fe.h
	need libssl-dev /usr/include/openssl/ssl.h
	need zlib1g-dev /usr/include/zlib.h
	need libzstd-dev /usr/include/zstd.h
	need libcurl4-openssl-dev '/usr/include/*/curl/curl.h'
	need libncurses-dev /usr/include/curses.h
	need pkg-config pkg-config
	for line in "$@"; do
		# shellcheck disable=SC2086
		need $line
	done
	if ! find_pg_config; then
		MISSING+=(postgresql)
		apt_update
		unset 'MISSING[-1]'
		major=$(postgresql_major)
		[ -n "$major" ] || die 'apt-get knows no PostgreSQL'
		MISSING+=("postgresql-$major" "postgresql-server-dev-$major")
	fi
	install_missing
	[ -n "$PG_CONFIG" ] || find_pg_config || die 'PostgreSQL is installed, but pg_config does not find it'
	export PG_CONFIG
	PG_BIN=$("$PG_CONFIG" --bindir)
	PATH=$PG_BIN:$PATH
	set_as_postgres
}

# The nats-server that takes atomic batches, 2.12 or newer, for the tests that need
# one: NEWER_NATS_SERVER is its path. The system's if it is new enough; else that
# of Debian sid's package, unpacked and not installed. Where it can't be had, the
# variable stays unset, those tests skip, and the reason is printed.
find_newer_nats() {
	local apt=$WORK/apt mirror=
	[ -z "${NEWER_NATS_SERVER:-}" ] || return 0
	if dpkg --compare-versions "$(nats-server --version | sed 's/.*v//')" ge 2.12 2>/dev/null; then
		NEWER_NATS_SERVER=$(command -v nats-server)
	elif mirror=$(apt-get indextargets --format "\$(REPO_URI)" 2>/dev/null | grep -m 1 '/debian/*$') &&
		unpack_from_sid "$mirror" nats-server >"$apt.log" 2>&1; then
		NEWER_NATS_SERVER=$apt/unpacked/usr/sbin/nats-server
	else
		say "tests of batches skip: no nats-server of 2.12 or newer${mirror:+, $(tail -n 1 "$apt.log")}"
		return 0
	fi
	export NEWER_NATS_SERVER
}

# private_apt TYPE MIRROR RELEASE: apt-get with APT_OPTIONS has lists and a cache of its own, in $WORK/apt, of that one place.
APT_OPTIONS=()
private_apt() {
	local apt=$WORK/apt
	mkdir -p "$apt"/{lists/partial,cache/archives/partial,download} || return 1
	echo "$1 [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $2 $3 main" >"$apt/sources.list"
	APT_OPTIONS=(-q -o "Dir::State=$apt" -o "Dir::State::status=/dev/null" -o "Dir::Cache=$apt/cache"
		-o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o Acquire::Check-Valid-Until=false
		-o Acquire::Languages=none -o "APT::Sandbox::User=$(id -un)")
	timeout 120 apt-get "${APT_OPTIONS[@]}" update
}

# unpack_from_sid MIRROR PACKAGE: into $WORK/apt/unpacked.
unpack_from_sid() {
	local apt=$WORK/apt
	private_apt deb "$1" sid &&
		(cd "$apt/download" && timeout 120 apt-get "${APT_OPTIONS[@]}" download "$2") &&
		dpkg -x "$apt/download/$2"_*.deb "$apt/unpacked" && chmod -R a+rX "$apt"
}

# ------------------------------------------------------------------ build

# Copies the checkout: objects of other builds don't get in the way, and the
# servers' user can read the copy wherever the checkout is.
copy_checkout() {
	mkdir "$WORK/src"
	tar -C "$ROOT" --exclude=./.git --exclude=./tmp_check --exclude=./log --exclude='build' \
		--exclude='*.o' --exclude='*.bc' --exclude='*.so' -cf - . | tar -C "$WORK/src" --no-same-owner -xf -
	chmod -R a+rX "$WORK/src"
}

# In the copy, with the variables given.
make_extension() {
	quietly make -C "$WORK/src" -j"$(nproc)" PG_CONFIG="$PG_CONFIG" "$@"
}

# ---------------------------------------------------------------- servers

free_port() {
	local port
	while true; do
		port=$((20000 + RANDOM % 12000))
		if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			printf '%s' "$port"
			return 0
		fi
	done
}

# start_postgres [LINE_OF_POSTGRESQL_CONF...]: a new cluster in $WORK/pg.
start_postgres() {
	PG_DATA=$WORK/pg
	PG_PORT=$(free_port)
	install -d -m 700 "$PG_DATA"
	give_to_postgres "$PG_DATA"
	quietly "${AS_POSTGRES[@]}" "$PG_BIN/initdb" -D "$PG_DATA" -U postgres -A trust --locale=C --encoding=UTF8 --no-sync
	{
		printf '%s\n' "listen_addresses = '127.0.0.1'" "port = $PG_PORT" "unix_socket_directories = '$PG_DATA'" \
			"shared_preload_libraries = 'outbox'" "$@"
	} >>"$PG_DATA/postgresql.conf"
	quietly "${AS_POSTGRES[@]}" "$PG_BIN/pg_ctl" -D "$PG_DATA" -l "$PG_DATA/server.log" -w start ||
		{ tail -n 20 "$PG_DATA/server.log" >&2; die 'could not start PostgreSQL'; }
	export PGHOST=$PG_DATA PGPORT=$PG_PORT PGUSER=postgres PGDATABASE=postgres
}

# By its process id, from the first line of postmaster.pid.
stop_postgres() {
	local pid
	[ -n "$PG_DATA" ] && [ -s "$PG_DATA/postmaster.pid" ] || return 0
	read -r pid <"$PG_DATA/postmaster.pid"
	kill -INT "$pid" 2>/dev/null
	for ((i = 0; i < 300; i++)); do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -QUIT "$pid" 2>/dev/null
}

# A nats-server with JetStream in $WORK/nats, ready for clients. Its port stays
# the same when it is started again.
start_nats() {
	local attempt
	if [ ! -d "$WORK/nats" ]; then
		mkdir "$WORK/nats"
		give_to_postgres "$WORK/nats"
	fi
	for ((attempt = 0; attempt < 5; attempt++)); do
		NATS_PORT=${NATS_PORT:-$(free_port)}
		setsid "${AS_POSTGRES[@]}" nats-server -a 127.0.0.1 -p "$NATS_PORT" -js -sd "$WORK/nats/store" \
			-l "$WORK/nats/server.log" </dev/null >/dev/null 2>&1 &
		NATS_PID=$!
		disown "$NATS_PID"
		for ((i = 0; i < 100; i++)); do
			kill -0 "$NATS_PID" 2>/dev/null || break
			if (: <"/dev/tcp/127.0.0.1/$NATS_PORT") 2>/dev/null; then
				export NATS_URL=nats://127.0.0.1:$NATS_PORT
				return 0
			fi
			sleep 0.1
		done
		stop_nats
		NATS_PORT=
	done
	tail -n 20 "$WORK/nats/server.log" >&2
	die 'could not start nats-server'
}

stop_nats() {
	[ -n "$NATS_PID" ] || return 0
	kill -TERM "$NATS_PID" 2>/dev/null
	for ((i = 0; i < 100; i++)); do
		kill -0 "$NATS_PID" 2>/dev/null || { NATS_PID=; return 0; }
		sleep 0.1
	done
	kill -KILL "$NATS_PID" 2>/dev/null
	NATS_PID=
}

# Unaligned, tuples only; stops at the first error.
sql() { psql -XqAt -v ON_ERROR_STOP=1 "$@"; }

# wait_for SECONDS QUERY: polls until the query yields t.
wait_for() {
	local end=$((SECONDS + $1))
	until [ "$(sql -c "$2")" = t ]; do
		[ "$SECONDS" -lt "$end" ] || return 1
		sleep 0.1
	done
}
