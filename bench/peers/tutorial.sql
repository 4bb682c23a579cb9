-- The outbox table as the tutorials have it.
CREATE TABLE peer.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL DEFAULT gen_random_uuid(),
    aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz);
CREATE INDEX ON peer.outbox (id) WHERE published_at IS NULL;

CREATE FUNCTION peer.enqueue(aggregate text, payload text) RETURNS void LANGUAGE sql AS
    $$INSERT INTO peer.outbox (aggregate_type, aggregate_id, event_type, payload)
      VALUES ('order', aggregate, 'placed', payload::jsonb)$$;
CREATE FUNCTION peer.settled() RETURNS boolean LANGUAGE sql AS
    'SELECT NOT EXISTS (SELECT FROM peer.outbox WHERE published_at IS NULL)';
