-- ------------------------------------------------------------ privileges

-- Nothing for PUBLIC but what is named as that.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
DO $$
DECLARE
    privilege text;
BEGIN
    FOR privilege IN SELECT outbox.privileges_of('public') LOOP
        EXECUTE pg_catalog.format('GRANT %s TO PUBLIC', privilege);
    END LOOP;
END $$;

-- Who may watch the server may watch us.
SELECT outbox.grant_monitor('pg_monitor');
