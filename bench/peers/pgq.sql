-- A batch is made as soon as there is one event, each time pgqd looks; see pgqd.ini in bench/peers/run.
CREATE EXTENSION pgq;
SELECT pgq.create_queue('peer');
SELECT pgq.set_queue_config('peer', 'ticker_max_lag', '0'), pgq.set_queue_config('peer', 'ticker_idle_period', '1 hour'),
    pgq.set_queue_config('peer', 'ticker_max_count', '1');
SELECT pgq.register_consumer('peer', 'relay');

CREATE FUNCTION peer.enqueue(aggregate text, payload text) RETURNS void LANGUAGE sql AS
    $$SELECT pgq.insert_event('peer', aggregate, payload, gen_random_uuid()::text, NULL, NULL, NULL)$$;
CREATE FUNCTION peer.settled() RETURNS boolean LANGUAGE sql AS
    $$SELECT pending_events = 0 FROM pgq.get_consumer_info('peer', 'relay')$$;
