-- ------------------------------------------------------------ privileges

-- Nothing for PUBLIC that writes or that shows data; EXECUTE on the enqueue
-- functions (or INSERT on outbox.events) is the privilege to enqueue.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
-- Called from within outbox.events with the rights of whoever reads the view; shows numbers and times only.
GRANT EXECUTE ON FUNCTION outbox.in_flight_positions(), outbox.settled_at(bigint), outbox.aggregate_hash(text, text) TO PUBLIC;
-- Called from within outbox.inbox_consumers; show what is in this file, and settings that everybody may read.
GRANT EXECUTE ON FUNCTION outbox.inbox_default_retention(), outbox.inbox_warning(interval, interval, interval, interval) TO PUBLIC;
