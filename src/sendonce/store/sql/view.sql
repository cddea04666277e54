-- Views: what people ask. Read-only, nothing is locked. {delivery} as in delivery.sql.

-- One delivery, or those of a reminder over all customers and channels.

-- name: view_delivery
SELECT {delivery} FROM delivery WHERE tenant = :tenant AND key = :key;

-- name: view_deliveries_of_reminder
SELECT {delivery} FROM delivery
WHERE reminder_id IN (SELECT id FROM reminder WHERE tenant = :tenant AND reminder = :reminder)
ORDER BY id LIMIT :limit;

-- name: view_ledger
SELECT seq, at, event, body, hash, receipt FROM ledger WHERE delivery_id = :delivery_id ORDER BY seq;

-- One box to find by, newest first, below id `before`.

-- name: view_find_key
SELECT {delivery} FROM delivery WHERE tenant = :tenant AND key = :value AND id < :before LIMIT :limit;

-- name: view_find_reminder
SELECT {delivery} FROM delivery
WHERE reminder_id IN (SELECT id FROM reminder WHERE tenant = :tenant AND reminder = :value) AND id < :before
ORDER BY id DESC LIMIT :limit;

-- name: view_find_customer
SELECT {delivery} FROM delivery
WHERE tenant = :tenant AND customer = :value AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: view_find_address
SELECT {delivery} FROM delivery
WHERE tenant = :tenant AND address_tag = :value AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: view_find_receipt
SELECT {delivery} FROM delivery
WHERE id IN (SELECT delivery_id FROM ledger WHERE receipt = :value AND receipt <> '')
  AND tenant = :tenant AND id < :before
ORDER BY id DESC LIMIT :limit;

-- The overview. Each stands on a partial index, so that a million future rows cost nothing but a count.

-- name: view_scheduled_total
SELECT count(*) AS total FROM agenda WHERE look = 0;

-- The head of the line by channel: the channel lies in the row, so only so many rows are looked at.
-- name: view_scheduled
SELECT channel, count(*) AS scheduled,
       coalesce(sum(CASE WHEN next_at <= :now THEN 1 ELSE 0 END), 0) AS due,
       coalesce(sum(CASE WHEN reason = 'catch_up' THEN 1 ELSE 0 END), 0) AS catching_up,
       min(next_at) AS first_at
FROM (SELECT channel, next_at, reason FROM agenda CROSS JOIN delivery WHERE id = delivery_id AND look = 0
      ORDER BY at, delivery_id LIMIT :limit) AS head
GROUP BY channel;

-- What a resume lets go, by channel: all that is due for the scheduler's, else what this pause put off.
-- name: view_held
SELECT channel, count(*) AS count FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look = 0 AND at <= CASE WHEN :scope = 'scheduler' THEN :now ELSE :until END
  AND (:scope = 'scheduler' OR reason = :reason
       AND CASE WHEN :scope = 'channel' THEN channel ELSE tenant || '/' || grp END = :name)
GROUP BY channel
UNION ALL
SELECT channel, count(*) AS count FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look < 0 AND at > :now AND at <= :until AND reason = :reason
  AND CASE WHEN :scope = 'channel' THEN channel ELSE tenant || '/' || grp END = :name
GROUP BY channel;

-- name: view_ready
SELECT via AS account, count(*) AS count, min(at) AS first_at FROM agenda WHERE look > 0 AND look < 10 GROUP BY via;

-- Waiting rows, and how many of them only wait for the next look of a worker.
-- name: view_waiting
SELECT via AS account, count(*) AS count,
       coalesce(sum(CASE WHEN at <= :now THEN 1 ELSE 0 END), 0) AS due, min(at) AS first_at
FROM agenda WHERE look < 0 GROUP BY via;

-- name: view_attention
SELECT channel, account, state, count(*) AS count FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look >= 10
GROUP BY channel, account, state;

-- name: view_calls
SELECT account, count(*) AS count, min(claimed_at) AS first_at FROM open_call GROUP BY account;

-- name: view_processes
SELECT id, role, channel, host, pid, started_at, beat_at, lease_until, stopped,
       EXISTS (SELECT 1 FROM leader l WHERE l.process = process.id AND l.lease_until > :steady) AS leads
FROM process WHERE stopped = 0 OR beat_at >= :since ORDER BY beat_at DESC, id LIMIT :limit;

-- name: view_passes
SELECT id, trigger, process, started_at, finished_at, mark_before, mark_after, counts, complete FROM pass_run
ORDER BY id DESC LIMIT :limit;

-- What happened lately, above an entry's number: no index that every move would have to pay for. The number is
-- given, not asked for in here: a planner that does not know it would read through all deliveries.
-- name: view_flow
SELECT d.account AS account, l.event AS event,
       CASE WHEN l.event = 'claimed' AND l.body NOT LIKE '%"decision":"first"%' THEN 1 ELSE 0 END AS again,
       count(*) AS count, min(l.at) AS first_at
FROM ledger l JOIN delivery d ON d.id = l.delivery_id
WHERE l.id > :after AND l.at > :since
GROUP BY d.account, l.event, again;

-- name: view_channel_of
SELECT channel FROM agenda CROSS JOIN delivery WHERE id = delivery_id AND via = :account AND look > 0 LIMIT 1;

-- The report of a day: dispositions, and whether the ledger ends where the row says it does.

-- name: view_report
SELECT d.channel AS channel, d.category AS category, d.account AS account, d.state AS state,
       CASE WHEN l.hash = d.head AND l.body LIKE '%"state":"' || d.state || '"%' THEN 1 ELSE 0 END AS backed,
       count(*) AS count
FROM delivery d LEFT JOIN ledger l ON l.delivery_id = d.id AND l.seq = d.seq
WHERE d.due_at >= :start AND d.due_at < :end AND (:tenant = '' OR d.tenant = :tenant)
GROUP BY d.channel, d.category, d.account, d.state, backed;

-- name: view_report_due
SELECT count(*) AS count FROM delivery
WHERE due_at >= :start AND due_at < :end AND (:tenant = '' OR tenant = :tenant);

-- name: view_report_open
SELECT {delivery} FROM delivery
WHERE due_at >= :start AND due_at < :end AND ended_at = 0 AND (:tenant = '' OR tenant = :tenant)
ORDER BY due_at, id LIMIT :limit;

-- name: view_report_unbacked
SELECT d.key AS key FROM delivery d LEFT JOIN ledger l ON l.delivery_id = d.id AND l.seq = d.seq
WHERE d.due_at >= :start AND d.due_at < :end AND (:tenant = '' OR d.tenant = :tenant)
  AND (l.hash IS NULL OR l.hash <> d.head OR l.body NOT LIKE '%"state":"' || d.state || '"%')
ORDER BY d.due_at, d.id LIMIT :limit;

-- The proof: everything of a span of ids, a span at a time.

-- name: view_verify_size
SELECT (SELECT coalesce(max(id), 0) FROM delivery) AS deliveries,
       (SELECT coalesce(max(delivery_id), 0) FROM ledger) AS recorded,
       (SELECT coalesce(max(delivery_id), 0) FROM agenda) AS planned;

-- name: view_verify_rows
SELECT {delivery}, coalesce(look, -9) AS look, coalesce(via, '') AS via, coalesce(at, 0) AS at,
       coalesce(place, 0) AS place, coalesce(until, 0) AS until
FROM delivery LEFT JOIN agenda ON delivery_id = id
WHERE id > :after AND id <= :upto ORDER BY id;

-- name: view_verify_agenda
SELECT delivery_id FROM agenda WHERE delivery_id > :after AND delivery_id <= :upto;

-- name: view_verify_lines
SELECT delivery_id, seq, at, event, body, hash, receipt FROM ledger
WHERE delivery_id > :after AND delivery_id <= :upto ORDER BY delivery_id, seq;

-- name: view_verify_contents
SELECT delivery_id, version, payload, hash FROM content
WHERE delivery_id > :after AND delivery_id <= :upto ORDER BY delivery_id, version;

-- name: view_verify_calls
SELECT delivery_id, epoch FROM open_call WHERE delivery_id > :after AND delivery_id <= :upto;

-- What the database server says of its tables, and who keeps it from tidying them up.

-- name: view_care_tables
SELECT name, alive, dead, changed, hot, bytes, tidied_at, analysed_at FROM {server_tables}
ORDER BY bytes DESC, name;

-- name: view_care_holders
SELECT pid, program, since FROM {server_holders} ORDER BY since LIMIT 10;

-- The operator's desk: dead letters and uncertain deliveries, a page at a time in the order of the
-- index. '' stands for "any"; a reason also stands for its family ("failed" for "failed:connection").

-- name: view_desk
SELECT {delivery} FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look = {look_of_state} AND look >= 10 AND (at, delivery_id) > (:next_at, :id)
  AND (:tenant = '' OR tenant = :tenant)
  AND (:channel = '' OR channel = :channel)
  AND (:account = '' OR account = :account)
  AND (:reason = '' OR reason = :reason OR substr(reason, 1, length(:reason) + 1) = :reason || ':')
  AND (:group = '' OR grp = :group)
  AND (:since = 0 OR due_at >= :since) AND (:until = 0 OR due_at < :until)
  AND (:template = '' OR EXISTS (SELECT 1 FROM reminder r WHERE r.id = reminder_id AND r.template = :template))
ORDER BY at, delivery_id LIMIT :limit;

-- name: view_desk_groups
SELECT state, reason, channel, account, count(*) AS count, min(due_at) AS first_due, max(due_at) AS last_due
FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look >= 10 AND state IN (:state, :other) AND (:tenant = '' OR tenant = :tenant)
GROUP BY state, reason, channel, account ORDER BY count DESC, state, reason, channel, account LIMIT :limit;

-- How many open deliveries a pause holds, up to `limit`.
-- name: view_group_open
SELECT count(*) AS count FROM (
    SELECT 1 FROM delivery
    WHERE reminder_id IN (SELECT id FROM reminder WHERE tenant = :tenant AND grp = :group AND grp <> '')
      AND ended_at = 0
    LIMIT :limit) AS held;

-- What people changed, outside any one delivery; newest first.
-- name: view_audit
SELECT id, at, actor, action, target, reason, body FROM audit WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- What happened minute by minute, above an entry's number, which bounds it: whatever was written is on these few
-- pages, and no delivery is looked up.
-- name: view_minutes
SELECT (at - :since) / 60000000 AS minute, event,
       CASE WHEN body LIKE '%"state":"DEAD"%' THEN 1 ELSE 0 END AS died,
       CASE WHEN event = 'claimed' AND body NOT LIKE '%"decision":"first"%' THEN 1 ELSE 0 END AS again,
       count(*) AS count, min(at) AS first_at
FROM ledger WHERE id > :after AND at > :since
GROUP BY minute, event, died, again;
