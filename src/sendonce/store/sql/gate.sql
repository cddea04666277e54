-- Gates, lanes and the fair order.

-- name: gate_lock
SELECT account, configured, limits, closed_until, closed_why, paused_until, state, version
FROM gate WHERE account = :account {for_update};

-- name: gate_all
SELECT account, configured, limits, closed_until, closed_why, paused_until, state, version
FROM gate ORDER BY account;

-- name: gate_insert
INSERT INTO gate (account, configured, limits, closed_until, closed_why, paused_until, state, version)
VALUES (:account, :configured, :limits, 0, '', 0, :state, 1)
ON CONFLICT (account) DO NOTHING;

-- name: gate_reseed
UPDATE gate SET configured = :configured, limits = :limits, version = version + 1
WHERE account = :account AND configured <> :configured;

-- name: gate_save
UPDATE gate SET
    limits = :limits, closed_until = :closed_until, closed_why = :closed_why,
    paused_until = :paused_until, state = :state, version = version + 1
WHERE account = :account AND version = :version;

-- name: flow_get
SELECT tag FROM flow WHERE account = :account AND flow = :flow;

-- Of two who went on from the same place, the one that came further counts, whoever writes last.
-- name: flow_save
INSERT INTO flow (account, flow, tag) VALUES (:account, :flow, :tag)
ON CONFLICT (account, flow) DO UPDATE SET tag = excluded.tag WHERE excluded.tag > flow.tag;

-- What another has in hand is not idle; to wait for it could be to wait for each other.
-- name: flow_forget
DELETE FROM flow WHERE account = :account AND flow IN (
    SELECT flow FROM flow WHERE account = :account AND tag < :below {skip_locked});

-- name: call_count
SELECT count(*), min(claimed_at) FROM open_call WHERE account = :account AND claimed_at >= :since;

-- name: call_open
INSERT INTO open_call (delivery_id, epoch, account, process, claimed_at, slot_at, send_deadline)
VALUES (:delivery_id, :epoch, :account, :process, :claimed_at, :slot_at, :send_deadline);

-- name: call_close
DELETE FROM open_call WHERE account = :account AND claimed_at = :claimed_at
  AND delivery_id = :delivery_id AND epoch = :epoch;

-- Calls whose own deadline has passed, also of a living process, and calls of a process without a lease.
-- In pages: a call that was given up stays here while its lane is held.
-- name: call_overdue
SELECT c.delivery_id, c.epoch, c.account, c.process, c.claimed_at, c.slot_at, c.send_deadline,
       CASE WHEN p.id IS NULL OR p.stopped = 1 OR p.lease_until <= :steady THEN 1 ELSE 0 END,
       coalesce(p.lease_until, c.send_deadline)
FROM open_call c LEFT JOIN process p ON p.id = c.process
WHERE (c.send_deadline <= :steady OR p.id IS NULL OR p.stopped = 1 OR p.lease_until <= :steady)
  AND (c.delivery_id, c.epoch) > (:after_id, :after_epoch)
ORDER BY c.delivery_id, c.epoch LIMIT :limit;
