-- What the library's DatabaseSetup makes, its functions and indexes included, comes first: bench/peers/run calls it.
CREATE FUNCTION peer.enqueue(aggregate text, payload text) RETURNS void LANGUAGE sql AS
    $$INSERT INTO peer.outbox (id, aggregate_type, aggregate_id, message_type, segment, payload)
      VALUES (gen_random_uuid(), 'order', aggregate, 'placed', aggregate, payload::jsonb)$$;
CREATE FUNCTION peer.settled() RETURNS boolean LANGUAGE sql AS
    'SELECT NOT EXISTS (SELECT FROM peer.outbox WHERE processed_at IS NULL)';
