-- -------------------------------------------- relays outside the server

CREATE FUNCTION outbox.claim(
    max_events integer DEFAULT 100, wait interval DEFAULT '0',
    OUT "position" bigint, OUT event_id uuid, OUT aggregate_type text, OUT aggregate_id text, OUT event_type text,
    OUT subject text, OUT headers jsonb, OUT payload bytea, OUT attempts integer)
RETURNS SETOF record LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_claim';
COMMENT ON FUNCTION outbox.claim IS
'gives this session up to max_events events to publish, each the head of an aggregate of its share; waits for a first one; see docs/outside-relays.md';

CREATE FUNCTION outbox.settle(positions bigint[]) RETURNS integer LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_settle';
COMMENT ON FUNCTION outbox.settle(bigint[]) IS
'records events that this session has claimed as published; returns how many of the positions those were';

CREATE FUNCTION outbox.fail("position" bigint, error text, code integer DEFAULT 0, permanent boolean DEFAULT false, counts boolean DEFAULT true)
RETURNS boolean LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_fail';
COMMENT ON FUNCTION outbox.fail IS
'records that a claimed event could not be published: it is retried with back-off, or a dead letter if permanent or after outbox.max_attempts; counts false: the broker''s fault; false if it isn''t claimed';

CREATE FUNCTION outbox.renew() RETURNS timestamptz LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_renew';
COMMENT ON FUNCTION outbox.renew() IS
'begins the session''s lease anew and returns its end; an error if it was lost, and with it all that was claimed';

CREATE FUNCTION outbox.release() RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_release';
COMMENT ON FUNCTION outbox.release() IS 'gives back the session''s share of the aggregates and what it has claimed; its end does the same';

CREATE FUNCTION outbox.error_counts(OUT class text, OUT count bigint)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_error_counts';
COMMENT ON FUNCTION outbox.error_counts() IS
'failed attempts to publish in this database since the server started, by class of error (see docs/delivery.md)';

INSERT INTO outbox.privileges SELECT 'relay', 'EXECUTE', unnest('{claim, settle, fail, renew, release}'::name[]);
INSERT INTO outbox.privileges VALUES ('monitor', 'EXECUTE', 'error_counts');
