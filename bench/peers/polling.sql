-- Payload as text, so that nobody parses it on its way, and an index of what is pending.
CREATE TABLE peer.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL DEFAULT gen_random_uuid(),
    aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
    payload text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
CREATE INDEX ON peer.outbox (id) WHERE published_at IS NULL;

CREATE FUNCTION peer.enqueue(aggregate text, payload text) RETURNS void LANGUAGE sql AS
    $$INSERT INTO peer.outbox (aggregate_type, aggregate_id, event_type, payload)
      VALUES ('order', aggregate, 'placed', payload)$$;
CREATE FUNCTION peer.settled() RETURNS boolean LANGUAGE sql AS
    'SELECT NOT EXISTS (SELECT FROM peer.outbox WHERE published_at IS NULL)';
