-- What is open and what happens, for people who watch: every statement goes by a partial index or by the
-- newest ledger rows, so that watching costs the same with a thousand deliveries and with a million.

-- name: view_progress_due
SELECT channel, count(*) AS n FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look = 0 AND at <= :now GROUP BY channel;

-- Due before and put off since, by a pause, quiet hours, a later turn or the configuration. For a single look:
-- it goes by all that is to be looked at until then.
-- name: view_progress_put_off
SELECT count(*) AS n FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look = 0 AND at > :now AND at <= :until AND due_at <= :now AND reason <> '';

-- name: view_progress_ready
SELECT channel, account, count(*) AS n FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look > 0 AND look < 10 GROUP BY channel, account;

-- Waiting rows, apart by whether they wait for a time of their own (a retry) or for a decision and the clock.
-- name: view_progress_waiting
SELECT channel, account,
       CASE WHEN reason IN ('quiet_hours', 'configuration', 'catch_up') OR substr(reason, 1, 7) = 'paused:'
            THEN 1 ELSE 0 END AS held,
       count(*) AS n
FROM agenda CROSS JOIN delivery WHERE id = delivery_id AND look < 0 GROUP BY channel, account, held;

-- name: view_progress_sending
SELECT account, count(*) AS n FROM open_call GROUP BY account;

-- name: view_progress_reconciling
SELECT channel, count(*) AS n FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look = 10 AND look >= 10 GROUP BY channel;

-- name: view_progress_last_entry
SELECT {last_entry} AS id;

-- name: view_progress_since
SELECT d.channel AS channel, l.event AS event, count(*) AS n
FROM ledger l JOIN delivery d ON d.id = l.delivery_id
WHERE l.id > :after AND l.id <= :last GROUP BY d.channel, l.event;
