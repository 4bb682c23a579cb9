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
-- Parts of outbox.capture() and outbox.guard(), which run as their caller. rule_save() asks by itself who may; the
-- others only read catalogs; trigger functions do nothing for a table that isn't their rule's.
GRANT EXECUTE ON FUNCTION outbox.rule_save(text, regclass, text, jsonb), outbox.rule_check(regclass, text, text[], text[]),
    outbox.rule_primary_key(regclass), outbox.capture_projection(regclass, oid), outbox.capture_check(jsonb, text, text, text, jsonb),
    outbox.capture_has_truncate_event(regclass, text), outbox.capture_row(), outbox.capture_cross(), outbox.guard_row(),
    outbox.rule_trigger_prefix(text, bigint), outbox.rule_state(text, bigint, regclass, integer) TO PUBLIC;
-- Called from within outbox.inbox_consumers; show what is in this file, and settings that everybody may read.
GRANT EXECUTE ON FUNCTION outbox.inbox_default_retention(), outbox.inbox_warning(interval, interval, interval, interval) TO PUBLIC;
