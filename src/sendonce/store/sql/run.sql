-- Processes, passes, imports, pauses, meta, the outbox.

-- name: meta_get
SELECT value FROM meta WHERE name = :name;

-- name: meta_put
INSERT INTO meta (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: process_beat
INSERT INTO process (id, role, channel, host, pid, started_at, beat_at, lease_until, stopped)
VALUES (:id, :role, :channel, :host, :pid, :started_at, :beat_at, :lease_until, :stopped)
ON CONFLICT (id) DO UPDATE SET
    beat_at = excluded.beat_at, lease_until = excluded.lease_until, stopped = excluded.stopped;

-- name: process_dead
SELECT id, role, channel, host, pid, started_at, beat_at, lease_until, stopped FROM process
WHERE stopped = 0 AND lease_until <= :steady;

-- name: process_stop
UPDATE process SET stopped = 1 WHERE id = :id;

-- Free, lapsed or one's own: else nothing changes, and somebody else leads.
-- name: leader_take
INSERT INTO leader (role, process, lease_until) VALUES (:role, :process, :lease_until)
ON CONFLICT (role) DO UPDATE SET process = excluded.process, lease_until = excluded.lease_until
WHERE leader.process = excluded.process OR leader.lease_until <= :steady;

-- name: leader_drop
DELETE FROM leader WHERE role = :role AND process = :process;

-- name: process_forget
DELETE FROM process WHERE id IN (
    SELECT p.id FROM process p
    WHERE p.beat_at < :before AND (p.stopped = 1 OR p.lease_until <= :steady)
      AND NOT EXISTS (SELECT 1 FROM open_call c WHERE c.process = p.id)
    ORDER BY p.beat_at, p.id LIMIT :limit);

-- name: pass_begin
INSERT INTO pass_run (trigger, process, started_at, finished_at, mark_before, mark_after, counts, complete)
VALUES (:trigger, :process, :started_at, 0, :mark, :mark, '{}', 0)
RETURNING id;

-- name: pass_finish
UPDATE pass_run SET finished_at = :finished_at, mark_after = :mark, counts = :counts, complete = :complete
WHERE id = :id;

-- Only the oldest are looked at: where they are young, so are all the others.
-- name: pass_forget
DELETE FROM pass_run WHERE id IN (
    SELECT id FROM (SELECT id, started_at FROM pass_run ORDER BY id LIMIT :limit) AS oldest
    WHERE started_at < :before);

-- name: import_begin
INSERT INTO import_run (tenant, source, file, actor, started_at, finished_at, counts, undone_at)
VALUES (:tenant, :source, :file, :actor, :started_at, 0, '{}', 0)
RETURNING id;

-- name: import_finish
UPDATE import_run SET finished_at = :finished_at, counts = :counts WHERE id = :id;

-- name: import_undo
UPDATE import_run SET undone_at = :undone_at WHERE id = :id AND undone_at = 0;

-- name: import_get
SELECT id, tenant, source, file, actor, started_at, finished_at, counts, undone_at FROM import_run
WHERE id = :id;

-- name: import_list
SELECT id, tenant, source, file, actor, started_at, finished_at, counts, undone_at FROM import_run
WHERE tenant = :tenant AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: pause_all
SELECT scope, name, until, reason, actor, at FROM pause;

-- name: pause_put
INSERT INTO pause (scope, name, until, reason, actor, at)
VALUES (:scope, :name, :until, :reason, :actor, :at)
ON CONFLICT (scope, name) DO UPDATE SET
    until = excluded.until, reason = excluded.reason, actor = excluded.actor, at = excluded.at;

-- name: pause_remove
DELETE FROM pause WHERE scope = :scope AND name = :name;

-- name: outbox_put
INSERT INTO outbox (delivery_id, epoch, account, place) VALUES (:delivery_id, :epoch, :account, :place)
ON CONFLICT (delivery_id, epoch) DO NOTHING;

-- What is ready, as it lies there: whoever relays a hint asks whether it is still true.
-- name: outbox_refill
INSERT INTO outbox (delivery_id, epoch, account, place)
SELECT id, epoch, via, place FROM (
    SELECT delivery_id, via, place FROM agenda
    WHERE via = :account AND look > 0 AND look < 10 ORDER BY look, place, delivery_id LIMIT :limit
) AS line CROSS JOIN delivery WHERE id = delivery_id
ON CONFLICT (delivery_id, epoch) DO NOTHING;

-- name: outbox_page
SELECT delivery_id, epoch, account, place FROM outbox WHERE account = :account
ORDER BY account, place, delivery_id LIMIT :limit;

-- name: outbox_all
SELECT delivery_id, epoch, account, place FROM outbox ORDER BY delivery_id, epoch LIMIT :limit;

-- name: outbox_take
DELETE FROM outbox WHERE delivery_id = :delivery_id AND epoch = :epoch;

-- What is due and waits, for the alarm; by partial indexes, so that future and finished rows cost nothing.

-- name: backlog_pending
SELECT channel, '' AS account, min(due_at) AS due_at, count(*) AS n
FROM agenda CROSS JOIN delivery WHERE id = delivery_id AND look = 0 AND at <= :now GROUP BY channel;

-- What hangs on each account and has not ended: queued, called, or in doubt.
-- name: backlog_open
SELECT via AS account, 'queued' AS how, count(*) AS n FROM agenda WHERE look > 0 AND look < 10 GROUP BY via
UNION ALL
SELECT via AS account, 'queued' AS how, count(*) AS n FROM agenda WHERE look < 0 GROUP BY via
UNION ALL
SELECT account, 'sending' AS how, count(*) AS n FROM open_call GROUP BY account
UNION ALL
SELECT via AS account, CASE look WHEN 10 THEN 'RECONCILING' ELSE 'UNCERTAIN' END AS how, count(*) AS n
FROM agenda WHERE look >= 10 AND look < 12 GROUP BY via, look;

-- name: backlog_queued
SELECT channel, account, min(due_at) AS due_at, count(*) AS n
FROM agenda CROSS JOIN delivery WHERE id = delivery_id AND look > 0 AND look < 10 GROUP BY channel, account
UNION ALL
SELECT channel, account, min(due_at) AS due_at, count(*) AS n
FROM agenda CROSS JOIN delivery WHERE id = delivery_id AND look < 0 GROUP BY channel, account;
