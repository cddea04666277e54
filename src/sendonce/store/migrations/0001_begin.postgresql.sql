-- What only PostgreSQL needs.

-- Room in the pages, so that a changed row stays on its own and no index hears of it. A delivery's row changes
-- three times in its life, when no other row of its page has ended yet; gates and processes change all the time.
ALTER TABLE delivery SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE gate SET (fillfactor = 20);
ALTER TABLE flow SET (fillfactor = 50);
ALTER TABLE process SET (fillfactor = 20);
-- What comes and goes: tidied up long before a fifth of it is dead, without holding back.
ALTER TABLE agenda SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE open_call SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                           autovacuum_vacuum_cost_delay = 0);
-- Entries come in the order of their numbers: what is newest is found without an index entry for each.
CREATE INDEX ledger_newest ON ledger USING brin (id) WITH (pages_per_range = 16, autosummarize = on);
-- Facets are changed and removed one by one, so their numbers do not stay in the order of the pages.
CREATE UNIQUE INDEX facet_number ON facet (number);

-- One row per writing connection, with the number of its last commit. The number is raised by the commit
-- itself: when the connection is lost under one, the row tells whether it happened (see `postgres`).
CREATE TABLE writer (
    id     TEXT PRIMARY KEY,
    number BIGINT NOT NULL,
    at     BIGINT NOT NULL            -- when it last committed; calendar
) WITH (fillfactor = 50);

-- The way in for applications: reminders inside their own transaction, see docs/outbox.md. Runs with the rights
-- of its owner, so that an application needs none on any table; so nothing in it may be found by a search path
-- that the caller chose.
CREATE FUNCTION schedule(reminders jsonb, on_error text DEFAULT 'refuse') RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $function$
DECLARE
    asked  jsonb;
    nth    bigint;
    fault  text[];
    taken  bigint := 0;
BEGIN
    IF on_error IS NULL OR on_error NOT IN ('refuse', 'park') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format(
            'on_error %L is not known: write ''refuse'', or ''park'' to keep what is wrong aside',
            left(on_error, 80));
    END IF;
    IF reminders IS NULL OR jsonb_typeof(reminders) NOT IN ('object', 'array') THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format(
            'reminders is %s: give one reminder as a JSON object, or an array of them',
            coalesce(jsonb_typeof(reminders), 'NULL'));
    END IF;
    FOR asked, nth IN
        SELECT value, ordinality FROM jsonb_array_elements(
            CASE jsonb_typeof(reminders) WHEN 'array' THEN reminders ELSE jsonb_build_array(reminders) END)
        WITH ORDINALITY
    LOOP
        fault := intake_fault(asked);
        IF fault IS NULL THEN
            taken := taken + 1;
        ELSIF on_error = 'refuse' THEN
            RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', COLUMN = fault[1],
                MESSAGE = format('reminder %s of those given: %s', nth, fault[2]);
        END IF;
        INSERT INTO intake (tenant, body, asked_at, asked_by, parked, field, why) VALUES (
            CASE jsonb_typeof(asked -> 'tenant') WHEN 'string' THEN asked ->> 'tenant' ELSE 'default' END,
            asked::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, session_user,
            CASE WHEN fault IS NULL THEN 0 ELSE 1 END, coalesce(fault[1], ''), coalesce(fault[2], ''));
    END LOOP;
    RETURN taken;
END
$function$;

-- What is wrong with a reminder, as far as that can be said without the configuration: the field, and the
-- sentence; NULL where nothing is. The same rules as `sendonce.outbox`.
CREATE FUNCTION intake_fault(asked jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE AS $function$
DECLARE
    fields constant text[] := array[
        'reminder', 'customer', 'due', 'plan', 'date', 'timezone', 'template', 'template_version', 'data', 'email',
        'phone', 'channels', 'sender', 'reply_to', 'sms_sender', 'category', 'group', 'priority', 'expires',
        'tenant'];
    other_names constant jsonb := '{
        "reminder_id": "reminder", "id": "reminder", "customer_id": "customer", "due_at": "due",
        "send_at": "due", "when": "due", "due_date": "date", "plan_date": "date", "zone": "timezone",
        "tz": "timezone", "time_zone": "timezone", "template_name": "template", "e_mail": "email",
        "email_address": "email", "mail": "email", "mobile": "phone", "phone_number": "phone",
        "mobile_number": "phone", "to": "phone", "channel": "channels", "from": "sender",
        "email_sender": "sender", "sms_from": "sms_sender", "group_id": "group", "campaign": "group",
        "expires_at": "expires", "expiry": "expires", "valid_for": "expires"}';
    bytes_max constant integer := 1048576;
    given jsonb := '{}';
    name  text;
    field text;
    value jsonb;
    fits  boolean;
BEGIN
    IF jsonb_typeof(asked) <> 'object' THEN
        RETURN array['reminder', format('it is %s and must be an object: {"reminder": ...}', jsonb_typeof(asked))];
    END IF;
    IF octet_length(asked::text) > bytes_max THEN
        RETURN array['data', format('it has %s KB and may have %s: shorten its data',
            octet_length(asked::text) / 1024, bytes_max / 1024)];
    END IF;
    FOR name, value IN SELECT * FROM jsonb_each(asked) LOOP
        field := coalesce(other_names ->> name, name);
        IF field <> ALL (fields) THEN
            RETURN array[left(name, 80), format(
                '%L is no field of a reminder: known are %s (what the template shows belongs into data)',
                left(name, 80), array_to_string(fields, ', '))];
        END IF;
        CONTINUE WHEN value = 'null';
        fits := CASE field
            WHEN 'data' THEN jsonb_typeof(value) = 'object'
            WHEN 'channels' THEN jsonb_typeof(value) = 'string' OR (jsonb_typeof(value) = 'array'
                AND NOT jsonb_path_exists(value, 'strict $[*] ? (@.type() <> "string")'))
            WHEN 'priority' THEN jsonb_typeof(value) = 'number' AND value::text ~ '^[0-9]$'
            WHEN 'template_version' THEN jsonb_typeof(value) = 'number' AND value::text ~ '^[0-9]{1,9}$'
            ELSE jsonb_typeof(value) = 'string'
        END;
        IF NOT fits THEN
            RETURN array[field, format('%s is %s and must be %s', field, left(value::text, 80), CASE field
                WHEN 'data' THEN 'an object'
                WHEN 'channels' THEN 'a list of names'
                WHEN 'priority' THEN 'a whole number from 0 (the rule) to 9 (first)'
                WHEN 'template_version' THEN 'a whole number; 0 is the newest'
                ELSE 'text' END)];
        END IF;
        CONTINUE WHEN value = '""';
        given := given || jsonb_build_object(field, value);
    END LOOP;
    RETURN CASE
        WHEN NOT given ? 'reminder' THEN
            array['reminder', 'reminder is empty: give it an id of your own, such as invoice-4821']
        WHEN NOT given ? 'template' THEN
            array['template', 'template is empty: name one, see `sendonce template list`']
        WHEN NOT given ?| array['email', 'phone'] THEN
            array['email', 'there is no address: give an email address, a phone number, or both']
        WHEN given ? 'plan' AND given ? 'due' THEN
            array['due', 'a plan takes a date and makes its own due times: drop due or the plan']
        WHEN given ? 'plan' AND NOT given ? 'date' THEN
            array['date', 'date is empty: a plan counts from it, give one such as 2026-12-01']
        WHEN given ? 'date' AND NOT given ? 'plan' THEN
            array['date', 'date belongs to a plan: name the plan, or write the time into due']
        WHEN NOT given ?| array['due', 'plan'] THEN
            array['due', 'due is empty: give a time such as 2026-12-01T09:00+01:00']
    END;
END
$function$;

-- Everybody may run a new function, until that is taken away. The temporary schema comes last: unnamed, it would
-- be searched first, and a caller could put a table of his own there.
REVOKE ALL ON FUNCTION schedule(jsonb, text), intake_fault(jsonb) FROM PUBLIC;
DO $block$
BEGIN
    EXECUTE format(
        'ALTER FUNCTION schedule(jsonb, text) SET search_path = pg_catalog, %I, pg_temp', current_schema());
END
$block$;
