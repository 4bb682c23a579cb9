# outbox: a PGXS extension. The version is the control file's default_version, see scripts/set-version.
#   make, make install, make installcheck     as with any extension
#   make TEST_POINTS=1                        with the pause points that t/ uses
#   make WERROR=1                             warnings are errors
#   make dist                                 archives of the last commit

EXTENSION = outbox
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" outbox.control)
MODULE_big = outbox
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))
DATA_built = sql/outbox--$(EXTVERSION).sql
DATA = $(wildcard sql/outbox--*--*.sql)

REGRESS = $(patsubst sql/%.sql,%,$(filter-out sql/outbox--%,$(sort $(wildcard sql/*.sql))))
# claim.spec wants a server with outbox.workers = 0, see test/regress/run.
ISOLATION = $(filter-out claim,$(patsubst isolation/specs/%.spec,%,$(sort $(wildcard isolation/specs/*.spec))))
ISOLATION_OPTS = --inputdir=isolation
TAP_TESTS = 1

PG_CPPFLAGS = -DOUTBOX_VERSION='"$(EXTVERSION)"'
PG_CFLAGS = -std=gnu11 -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers \
	-Wno-declaration-after-statement
PG_CPPFLAGS = -DOUTBOX_VERSION='"$(EXTVERSION)"'
ifdef TEST_POINTS
PG_CPPFLAGS += -DOUTBOX_TEST_POINTS
endif
ifdef WERROR
PG_CFLAGS += -Werror
endif
SHLIB_LINK = -lnats -lcrypto -lcurl -lz -lzstd -lpthread

EXTRA_CLEAN = outbox-replay outbox-top $(patsubst %.c,%.o,$(wildcard src/cli/*.c src/top/*.c))

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
ifeq ($(wildcard $(PGXS)),)
$(error "$(PG_CONFIG) --pgxs" finds no server headers. Install them (Debian: postgresql-server-dev-15), or name the pg_config of your server: make PG_CONFIG=/path/to/pg_config)
endif
include $(PGXS)
ifneq ($(filter 8 9 10 11 12 13 14,$(basename $(MAJORVERSION))),)
$(error outbox needs PostgreSQL 15 or newer, and $(PG_CONFIG) belongs to $(VERSION). Name another one: make PG_CONFIG=/path/to/pg_config)
endif

$(OBJS): $(wildcard src/*.h)
src/version.o: outbox.control

# The install script is made of parts.
sql/outbox--$(EXTVERSION).sql: $(sort $(wildcard sql/install/*.sql)) outbox.control
	cat $(filter %.sql,$^) >$@

# The command outbox-replay: the plain C of src/, and a few files of its own.
CLI_SHARED = archive_file archive_manifest attributes buffer encode envelope json pause replay_archive replay_clickhouse replay_filter replay_line replay_player url ack \
	$(patsubst src/%.c,%,$(wildcard src/broker*.c))
CLI_OBJS = $(patsubst %.c,%.o,$(wildcard src/cli/*.c))
$(CLI_OBJS): $(wildcard src/cli/*.h src/*.h)

# The command outbox-top: a client of the views, on a terminal.
TOP_OBJS = $(patsubst %.c,%.o,$(wildcard src/top/*.c))
$(TOP_OBJS): $(wildcard src/top/*.h src/cli/*.h)

$(CLI_OBJS) $(TOP_OBJS): %.o: %.c
	$(CC) $(CFLAGS) -D_GNU_SOURCE -DOUTBOX_VERSION='"$(EXTVERSION)"' -I$(shell $(PG_CONFIG) --includedir) -c -o $@ $<
outbox-replay: $(CLI_OBJS) $(CLI_SHARED:%=src/%.o)
	$(CC) $(CFLAGS) -o $@ $^ $(LDFLAGS) -L$(shell $(PG_CONFIG) --libdir) -lpq $(SHLIB_LINK)
outbox-top: $(TOP_OBJS) src/cli/cli_common.o
	$(CC) $(CFLAGS) -o $@ $^ $(LDFLAGS) -L$(shell $(PG_CONFIG) --libdir) -lpq -lncursesw -lm

COMMANDS = outbox-replay outbox-top
all: $(COMMANDS)
install: install-cli
install-cli: $(COMMANDS)
	$(MKDIR_P) '$(DESTDIR)$(bindir)' '$(DESTDIR)$(mandir)/man1'
	$(INSTALL_PROGRAM) $(COMMANDS) '$(DESTDIR)$(bindir)'
	$(INSTALL_DATA) $(COMMANDS:%=docs/man/%.1) '$(DESTDIR)$(mandir)/man1'
uninstall: uninstall-cli
uninstall-cli:
	rm -f $(COMMANDS:%='$(DESTDIR)$(bindir)/%') $(COMMANDS:%='$(DESTDIR)$(mandir)/man1/%.1')
.PHONY: install-cli uninstall-cli

# What is released: the last commit, the same bytes whoever makes it. PGXN takes the zip.
RELEASE = outbox-$(EXTVERSION)
dist:
	TZ=UTC git archive --format=zip --prefix=$(RELEASE)/ -o $(RELEASE).zip HEAD
	git -c tar.umask=0022 archive --format=tar --prefix=$(RELEASE)/ HEAD | gzip -9n >$(RELEASE).tar.gz
	sha256sum $(RELEASE).zip $(RELEASE).tar.gz
.PHONY: dist

# TAP tests find their module in t/, and talk to NATS through a tool of ours.
PROVE_FLAGS = -I t
installcheck: natstool
natstool:
	$(MAKE) -C test/tools
.PHONY: natstool
