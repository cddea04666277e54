-- What will fall due, for the forecast. Counts come from partial indexes alone; what lies in the rows is read of a
-- sample: one in `step`, chosen by the delivery's number in a way that follows no order in which rows came.

-- name: view_forecast_minutes
SELECT at / 60000000 AS minute, count(*) AS count FROM agenda
WHERE look = 0 AND at >= :since AND at < :until GROUP BY at / 60000000;

-- name: view_forecast_scheduled
SELECT at, until, delivery.due_at AS due_at, delivery.tenant AS tenant, channel, delivery.category AS category,
       reason, reminder.zone AS zone, key, account, recipients
FROM agenda CROSS JOIN delivery CROSS JOIN reminder
WHERE delivery.id = delivery_id AND reminder.id = reminder_id
  AND look = 0 AND at >= :since AND at < :until
  AND (delivery_id % 1000003 * 7919 % 1000003) % :step = 0;

-- name: view_forecast_queue
SELECT via, count(*) AS count FROM agenda WHERE look > 0 AND look < 10 GROUP BY via
UNION ALL
SELECT via, count(*) AS count FROM agenda WHERE look < 0 GROUP BY via;

-- name: view_forecast_queued
SELECT via, at, until, due_at, cost FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look > 0 AND look < 10 AND (delivery_id % 1000003 * 7919 % 1000003) % :step = 0
UNION ALL
SELECT via, at, until, due_at, cost FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look < 0 AND (delivery_id % 1000003 * 7919 % 1000003) % :step = 0;

-- The last calls, above an entry's number, which bounds it: how long each held its lane, and which were repeats.
-- name: view_forecast_calls
SELECT l.delivery_id AS delivery_id, d.account AS account, l.event AS event, l.at AS at,
       CASE WHEN l.event = 'claimed' AND l.body NOT LIKE '%"decision":"first"%' THEN 1 ELSE 0 END AS again
FROM ledger l JOIN delivery d ON d.id = l.delivery_id
WHERE l.id > :after AND l.event IN
      ('claimed', 'accepted', 'failed', 'throttled', 'held', 'rejected', 'unknown', 'released')
ORDER BY l.id;

-- Who comes too late first.

-- name: view_forecast_keys
SELECT key, delivery.tenant AS tenant, channel, delivery.category AS category, account, recipients
FROM agenda CROSS JOIN delivery CROSS JOIN reminder
WHERE delivery.id = delivery_id AND reminder.id = reminder_id AND look = 0 AND at >= :since AND at <= :until
ORDER BY at, delivery_id LIMIT :limit OFFSET :offset;

-- name: view_forecast_queued_keys
SELECT key FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND via = :account AND look > 0 AND look < 10
ORDER BY look, place, delivery_id LIMIT :limit OFFSET :offset;
