-- Deliveries: the hot table. {delivery} stands for the columns in the order of `sendonce.store.nouns`.

-- name: delivery_insert
INSERT INTO delivery (
    tenant, key, reminder_id, customer, part, channel, address_tag, category, grp, priority,
    state, epoch, version, maybe, permit, ending, pending, ready, unsent, attention,
    due_at, next_at, expires_at, account, tag, cost, attempts, failures, throttles,
    first_try, last_try, receipt, reason, ended_at, seq, head)
VALUES (
    :tenant, :key, :reminder_id, :customer, :part, :channel, :address_tag, :category, :grp, :priority,
    :state, 0, 1, 0, 0, '', 1, 0, 1, 0,
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

-- name: delivery_matching_pending
SELECT {delivery} FROM delivery WHERE pending = 1 AND id > :after ORDER BY id LIMIT :limit {for_update};

-- name: delivery_matching_state
SELECT {delivery} FROM delivery
WHERE attention = 1 AND state = :state AND id > :after ORDER BY id LIMIT :limit {for_update};

-- name: delivery_matching_receipt
SELECT {delivery} FROM delivery
WHERE receipt = :receipt AND receipt <> '' AND id > :after ORDER BY id LIMIT :limit {for_update};

-- State and a partial index decide who is due, never a mark: a row that commits late is simply seen.
-- name: delivery_due
SELECT {delivery} FROM delivery
WHERE pending = 1 AND next_at <= :now ORDER BY next_at, id LIMIT :limit {skip_locked};

-- Where others write at the same time, what somebody holds is left alone: he is about to decide on it, and
-- to wait for one row after another in the order of the index would cross those who lock by id.
-- name: delivery_wake
UPDATE delivery SET ready = -ready
WHERE account = :account AND ready < 0 AND next_at <= :now {waiting_unlocked};

-- name: delivery_ready
SELECT {delivery} FROM delivery
WHERE account = :account AND ready = :ready AND ready > 0 ORDER BY tag, id LIMIT :limit {skip_locked};

-- name: delivery_next_wake
SELECT min(next_at) FROM delivery WHERE account = :account AND ready < 0;

-- name: delivery_expired
SELECT {delivery} FROM delivery
WHERE unsent = 1 AND expires_at <= :now ORDER BY expires_at LIMIT :limit {skip_locked};

-- name: delivery_attention
SELECT {delivery} FROM delivery
WHERE attention = 1 AND state = :state AND next_at <= :now AND :account IN ('', account) ORDER BY next_at, id LIMIT :limit {skip_locked};

-- The only statement that writes a state.
-- name: delivery_move
UPDATE delivery SET
    state = :state, epoch = :epoch, version = :version, maybe = :maybe, permit = :permit, ending = :ending,
    pending = :pending, ready = :ready, unsent = :unsent, attention = :attention,
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
UPDATE delivery SET next_at = :next_at WHERE id = :id AND seq = :from_seq AND ready <= 0;

-- A pause is over: what it put off, at most an hour ahead, is looked at now. No entry: the claim or the
-- publication that follows is the news.
-- name: delivery_unpause_scheduled
UPDATE delivery SET next_at = :now WHERE id IN (
    SELECT id FROM delivery
    WHERE pending = 1 AND next_at > :now AND next_at <= :until AND reason = :reason
      AND CASE WHEN :scope = 'channel' THEN channel ELSE tenant || '/' || grp END = :name
    ORDER BY next_at, id LIMIT :limit);

-- name: delivery_unpause_queued
UPDATE delivery SET next_at = :now WHERE id IN (
    SELECT id FROM delivery
    WHERE account = :account AND ready < 0 AND next_at > :now AND next_at <= :until AND reason = :reason
      AND CASE WHEN :scope = 'channel' THEN channel ELSE tenant || '/' || grp END = :name
    ORDER BY next_at LIMIT :limit);

-- What is queued and was put off by a pause, for a resume that gives it turns: those that waited longest, by
-- the index of what waits; then in order of id, as all rows are locked. Whose turn is given leaves it, so it
-- has no pages.
-- name: delivery_matching_held_queued
SELECT {delivery} FROM delivery WHERE id IN (
    SELECT id FROM delivery
    WHERE ready < 0 AND next_at > :now AND next_at <= :until AND reason = :reason
      AND CASE WHEN :scope = 'channel' THEN channel ELSE tenant || '/' || grp END = :name
    ORDER BY next_at, id LIMIT :limit)
ORDER BY id {for_update};

-- name: delivery_note
UPDATE delivery SET seq = :seq, head = :head WHERE id = :id AND seq = :from_seq;

-- name: ledger_append
INSERT INTO ledger (delivery_id, seq, at, event, body, hash)
VALUES (:delivery_id, :seq, :at, :event, :body, :hash);
