# outbox: a PGXS extension. The version is the control file's default_version.
#   make, make install, make installcheck     as with any extension
#   make TEST_POINTS=1                        with the pause points that t/ uses
#   make WERROR=1                             warnings are errors

EXTENSION = outbox
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" outbox.control)
MODULE_big = outbox
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))
DATA_built = sql/outbox--$(EXTVERSION).sql

REGRESS = $(patsubst sql/%.sql,%,$(filter-out sql/outbox--%,$(sort $(wildcard sql/*.sql))))
# claim.spec wants a server with outbox.workers = 0, see test/regress/run.
ISOLATION = $(filter-out claim,$(patsubst isolation/specs/%.spec,%,$(sort $(wildcard isolation/specs/*.spec))))
ISOLATION_OPTS = --inputdir=isolation
TAP_TESTS = 1

PG_CFLAGS = -std=gnu11 -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers \
	-Wno-declaration-after-statement
PG_CPPFLAGS = -DOUTBOX_VERSION='"$(EXTVERSION)"'
ifdef TEST_POINTS
PG_CPPFLAGS += -DOUTBOX_TEST_POINTS
endif
ifdef WERROR
PG_CFLAGS += -Werror
endif
SHLIB_LINK = -lnats -lcrypto -lpthread

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

$(OBJS): $(wildcard src/*.h)

# The install script is made of parts.
sql/outbox--$(EXTVERSION).sql: $(sort $(wildcard sql/install/*.sql)) outbox.control
	cat $(filter %.sql,$^) >$@

# TAP tests find their module in t/, and talk to NATS through a tool of ours.
PROVE_FLAGS = -I t
installcheck: natstool
natstool:
	$(MAKE) -C test/tools
.PHONY: natstool
