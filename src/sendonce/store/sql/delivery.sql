-- Deliveries: the hot table. {delivery} stands for the columns in the order of `sendonce.store.deliveries`.
-- {lock_each} and {skip_each} are `delivery`, one row at a time and locked, behind a row of the agenda: a lock is
-- waited for, or what another holds is passed over.

-- name: delivery_insert
INSERT INTO delivery (
    tenant, key, reminder_id, customer, part, channel, address_tag, category, grp, priority,
    state, epoch, version, maybe, permit, ending,
    due_at, next_at, expires_at, account, tag, cost, attempts, failures, throttles,
    first_try, last_try, receipt, reason, ended_at, seq, head)
VALUES (
    :tenant, :key, :reminder_id, :customer, :part, :channel, :address_tag, :category, :grp, :priority,
    :state, 0, 1, 0, 0, '',
    :due_at, :due_at, :expires_at, '', 0, 1, 0, 0, 0,
    0, 0, '', '', 0, 1, :head)
RETURNING id;

-- name: delivery_by_id
SELECT {delivery} FROM delivery WHERE id = :id {for_update};

-- name: delivery_by_key
SELECT {delivery} FROM delivery WHERE tenant = :tenant AND key = :key {for_update};

-- name: delivery_of_reminder
SELECT {delivery} FROM delivery WHERE reminder_id = :reminder_id ORDER BY id {for_update};

-- name: delivery_matching_reminder
SELECT {delivery} FROM delivery
WHERE reminder_id IN (SELECT id FROM reminder WHERE tenant = :tenant AND reminder = :reminder)
  AND id > :after ORDER BY id LIMIT :limit {for_update};

-- name: delivery_matching_customer
SELECT {delivery} FROM delivery
WHERE tenant = :tenant AND customer = :customer AND id > :after ORDER BY id LIMIT :limit {for_update};

-- name: delivery_matching_group
SELECT {delivery} FROM delivery
WHERE reminder_id IN (SELECT id FROM reminder WHERE tenant = :tenant AND grp = :group AND grp <> '')
  AND id > :after ORDER BY id LIMIT :limit {for_update};

-- name: delivery_matching_import
SELECT {delivery} FROM delivery
WHERE reminder_id IN (SELECT id FROM reminder WHERE made_by = :import_id AND made_by <> 0)
  AND id > :after ORDER BY id LIMIT :limit {for_update};

-- What a named source listed before and its last import did not list again.
-- name: delivery_matching_source_missing
SELECT {delivery} FROM delivery
WHERE reminder_id IN (SELECT id FROM reminder WHERE tenant = :tenant AND source = :source
                      AND source <> '' AND import_id <> :import_id)
  AND ended_at = 0 AND id > :after ORDER BY id LIMIT :limit {for_update};

-- name: delivery_matching_address
SELECT {delivery} FROM delivery
WHERE tenant = :tenant AND address_tag = :address_tag AND id > :after ORDER BY id LIMIT :limit {for_update};

-- name: delivery_matching_address_open
SELECT {delivery} FROM delivery
WHERE tenant = :tenant AND address_tag = :address_tag AND ended_at = 0 AND id > :after
ORDER BY id LIMIT :limit {for_update};

-- Their ids, for who locks them in one order with others.
-- name: delivery_open_at
SELECT id FROM delivery WHERE tenant = :tenant AND address_tag = :address_tag AND ended_at = 0;

-- name: delivery_matching_pending
SELECT {delivery} FROM agenda CROSS JOIN {lock_each}
WHERE id = delivery_id AND look = 0 AND state = 'SCHEDULED' AND delivery_id > :after
ORDER BY delivery_id LIMIT :limit;

-- name: delivery_matching_state
SELECT {delivery} FROM agenda CROSS JOIN {lock_each}
WHERE id = delivery_id AND look = {look_of_state} AND look >= 10 AND state = :state AND delivery_id > :after
ORDER BY delivery_id LIMIT :limit;

-- name: delivery_matching_receipt
SELECT {delivery} FROM delivery
WHERE id IN (SELECT delivery_id FROM ledger WHERE receipt = :receipt AND receipt <> '')
  AND id > :after ORDER BY id LIMIT :limit {for_update};

-- The agenda and a partial index decide who is due, never a mark: a row that commits late is simply seen. What is
-- asked of the delivery too is asked once it is locked: it may have moved since its place on the agenda was read.
-- name: delivery_due
SELECT {delivery} FROM agenda CROSS JOIN {skip_each}
WHERE id = delivery_id AND look = 0 AND at >= :since AND at <= :now AND state = 'SCHEDULED' AND next_at <= :now
ORDER BY at, delivery_id LIMIT :limit;

-- Locks nothing and passes nothing over: what somebody holds is due until he has decided.
-- name: delivery_first_due
SELECT min(at) FROM agenda WHERE look = 0 AND at <= :now;

-- Where others write at the same time, what somebody holds is left alone: he is about to decide on it.
-- name: delivery_wake
UPDATE agenda SET look = -look
WHERE via = :account AND look < 0 AND at <= :now {waiting_unlocked};

-- The same for those that waited longest, one by one, for who hints them.
-- name: delivery_wake_some
UPDATE agenda SET look = -look
WHERE delivery_id IN (
    SELECT delivery_id FROM agenda WHERE via = :account AND look < 0 AND at <= :now
    ORDER BY at LIMIT :limit {skip_locked})
RETURNING delivery_id;

-- name: delivery_ready
SELECT {delivery} FROM agenda CROSS JOIN {skip_each}
WHERE id = delivery_id AND via = :account AND look = :look AND look > 0 AND place >= :since AND state = 'QUEUED'
ORDER BY place, delivery_id LIMIT :limit;

-- The same beyond a place, for who takes deliveries out of the line of an account.
-- name: delivery_line
SELECT {delivery} FROM agenda CROSS JOIN {skip_each}
WHERE id = delivery_id AND via = :account AND look = :look AND look > 0
  AND (place, delivery_id) > (:after_place, :after) AND state = 'QUEUED'
ORDER BY place, delivery_id LIMIT :limit;

-- What decides whether one of them may leave that account.
-- name: delivery_doubts
SELECT event FROM ledger WHERE delivery_id = :id AND event IN ('unknown', 'doubted', 'rerouted');

-- name: delivery_next_wake
SELECT min(at) FROM agenda WHERE via = :account AND look < 0;

-- name: delivery_expired
SELECT {delivery} FROM agenda CROSS JOIN {skip_each}
WHERE id = delivery_id AND look < 10 AND until <= :now AND state IN ('SCHEDULED', 'QUEUED')
  AND expires_at <= :now
ORDER BY until LIMIT :limit;

-- name: delivery_attention
SELECT {delivery} FROM agenda CROSS JOIN {skip_each}
WHERE id = delivery_id AND look = {look_of_state} AND look >= 10 AND at <= :now AND :account IN ('', via)
  AND state = :state AND next_at <= :now
ORDER BY at, delivery_id LIMIT :limit;

-- The only statement that writes a state.
-- name: delivery_move
UPDATE delivery SET
    state = :state, epoch = :epoch, version = :version, maybe = :maybe, permit = :permit, ending = :ending,
    next_at = :next_at, expires_at = :expires_at, account = :account, tag = :tag,
    cost = :cost, attempts = :attempts, failures = :failures, throttles = :throttles,
    first_try = :first_try, last_try = :last_try, receipt = :receipt, reason = :reason,
    ended_at = :ended_at, seq = :seq, head = :head
WHERE id = :id AND state = :from_state AND epoch = :from_epoch AND seq = :from_seq;

-- What only a revision changes, apart: naming a column rewrites its index entry, changed or not.
-- name: delivery_relabel
UPDATE delivery SET
    due_at = :due_at, address_tag = :address_tag, category = :category, grp = :grp, priority = :priority
WHERE id = :id;

-- Looked at again later, for the same reason as before: no entry, the first one told it.
-- name: delivery_defer
UPDATE delivery SET next_at = :next_at WHERE id = :id AND seq = :from_seq;

-- What a pause put off, at most an hour ahead, those that waited longest first.
-- name: delivery_paused_scheduled
SELECT id FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND look = 0 AND at > :now AND at <= :until AND reason = :reason
  AND CASE WHEN :scope = 'channel' THEN channel ELSE tenant || '/' || grp END = :name
ORDER BY at, delivery_id LIMIT :limit;

-- name: delivery_paused_queued
SELECT id FROM agenda CROSS JOIN delivery
WHERE id = delivery_id AND via = :account AND look < 0 AND at > :now AND at <= :until AND reason = :reason
  AND CASE WHEN :scope = 'channel' THEN channel ELSE tenant || '/' || grp END = :name
ORDER BY at LIMIT :limit;

-- The same of any account, for a resume that gives turns; then in order of id, as all rows are locked. Whose
-- turn is given leaves it, so it has no pages.
-- name: delivery_matching_held_queued
SELECT {delivery} FROM delivery WHERE id IN (
    SELECT id FROM agenda CROSS JOIN delivery
    WHERE id = delivery_id AND look < 0 AND at > :now AND at <= :until AND reason = :reason
      AND CASE WHEN :scope = 'channel' THEN channel ELSE tenant || '/' || grp END = :name
    ORDER BY at, delivery_id LIMIT :limit)
ORDER BY id {for_update};

-- name: delivery_note
UPDATE delivery SET seq = :seq, head = :head WHERE id = :id AND seq = :from_seq;

-- name: ledger_append
INSERT INTO ledger (delivery_id, seq, at, event, body, hash, receipt)
VALUES (:delivery_id, :seq, :at, :event, :body, :hash, :receipt);

-- The agenda: what follows from a delivery's row for those who look for it.

-- name: agenda_put
INSERT INTO agenda (delivery_id, look, via, at, place, until)
VALUES (:delivery_id, :look, :via, :at, :place, :until);

-- name: agenda_change
UPDATE agenda SET look = :look, via = :via, at = :at, place = :place, until = :until
WHERE delivery_id = :delivery_id;

-- name: agenda_defer
UPDATE agenda SET at = :at WHERE delivery_id = :delivery_id;

-- name: agenda_strike
DELETE FROM agenda WHERE delivery_id = :delivery_id;
