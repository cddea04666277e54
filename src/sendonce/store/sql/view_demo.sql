-- What the demo holds against the sandbox.

-- name: view_demo_states
SELECT key, channel, state FROM delivery ORDER BY id;

-- name: view_demo_scheduled
SELECT count(*) AS n FROM agenda WHERE look = 0;

-- name: view_demo_reminders
SELECT count(*) AS n FROM reminder;

-- name: view_demo_uncertain
SELECT channel, count(*) AS n FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look = 11 AND look >= 10 GROUP BY channel;

-- One that had a hard time and made it: retried under its key after a lost response.
-- name: view_demo_example
SELECT key FROM delivery WHERE state = 'ACCEPTED' AND maybe = 1 ORDER BY attempts DESC, id LIMIT 1;
