-- No table: an event is a transactional message in the WAL.
CREATE PUBLICATION peer;
SELECT pg_create_logical_replication_slot('peer', 'pgoutput');

CREATE FUNCTION peer.enqueue(aggregate text, payload text) RETURNS void LANGUAGE sql AS
    $$SELECT pg_logical_emit_message(true, 'outbox', gen_random_uuid() || ' ' || aggregate || ' ' || payload)$$;
CREATE FUNCTION peer.settled() RETURNS boolean LANGUAGE sql AS 'SELECT true';
