-- What metrics tell of the store, every few seconds, beside what the alarm and the overview ask: through partial
-- indexes, and never with a count of what is due some day.

-- name: view_metrics_unresolved
SELECT channel, account, state, count(*) AS count, coalesce(min(nullif(ended_at, 0)), 0) AS ended_at,
       coalesce(min(nullif(last_try, 0)), 0) AS tried_at
FROM agenda CROSS JOIN delivery WHERE id = delivery_id AND look >= 10
GROUP BY channel, account, state;
