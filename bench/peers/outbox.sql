CREATE FUNCTION peer.enqueue(aggregate text, payload text) RETURNS void LANGUAGE sql AS
    $$SELECT outbox.enqueue_text('order', aggregate, 'placed', payload)$$;
