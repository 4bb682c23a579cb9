-- ------------------------------------------------------------ privileges

-- Nothing for PUBLIC that writes or that shows data; EXECUTE on the enqueue
-- functions (or INSERT on outbox.events) is the privilege to enqueue.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
-- Called from within outbox.events with the rights of whoever reads the view; shows numbers and times only.
GRANT EXECUTE ON FUNCTION outbox.in_flight_positions(), outbox.settled_at(bigint), outbox.aggregate_hash(text, text) TO PUBLIC;
-- Called from within outbox.adopt() with the rights of whoever adopts a table.
GRANT EXECUTE ON FUNCTION outbox.adoption_column(regclass, text[]), outbox.adoption_preset(regclass, text), outbox.adoption_call,
    outbox.adoption_columns(regclass, text), outbox.adoption_marking(regclass, text, text), outbox.adoption_install TO PUBLIC;
GRANT SELECT ON outbox.adoptions TO PUBLIC;
