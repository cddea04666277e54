-- What the demo holds against the sandbox.

-- name: view_demo_states
SELECT key, channel, state FROM delivery ORDER BY id;

-- name: view_demo_scheduled
SELECT count(*) AS n FROM delivery WHERE pending = 1;

-- name: view_demo_reminders
SELECT count(*) AS n FROM reminder;

-- name: view_demo_uncertain
SELECT channel, count(*) AS n FROM delivery WHERE attention = 1 AND state = 'UNCERTAIN' GROUP BY channel;

-- One that had a hard time and made it: retried under its key after a lost response.
-- name: view_demo_example
SELECT key FROM delivery WHERE state = 'ACCEPTED' AND maybe = 1 ORDER BY attempts DESC, id LIMIT 1;
