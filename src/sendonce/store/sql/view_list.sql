-- Deliveries by filters, a page at a time: by the index of what is named, newest first, below id `before`. '' stands
-- for any. Where nothing is named that has an index, a span of ids at a time, so that a page costs the same however
-- rare what fits is. `tenant || ''`: an index of the tenant's would bring all of its rows, to sort them.

-- name: view_list_newest
SELECT coalesce(max(id), 0) AS id FROM delivery;

-- name: view_list_span
SELECT {delivery} FROM delivery
WHERE id < :before AND id >= :floor AND tenant || '' = :tenant
  AND (:customer = '' OR customer = :customer) AND (:group = '' OR grp = :group)
  AND (:channel = '' OR channel = :channel) AND (:account = '' OR account = :account)
  AND (:category = '' OR category = :category) AND (:state = '' OR state = :state)
  AND due_at >= :since AND due_at < :until
ORDER BY id DESC LIMIT :limit;

-- name: view_list_reminder
SELECT {delivery} FROM delivery
WHERE reminder_id IN (SELECT id FROM reminder WHERE tenant = :tenant AND reminder = :reminder) AND id < :before
  AND (:customer = '' OR customer = :customer) AND (:group = '' OR grp = :group)
  AND (:channel = '' OR channel = :channel) AND (:account = '' OR account = :account)
  AND (:category = '' OR category = :category) AND (:state = '' OR state = :state)
  AND due_at >= :since AND due_at < :until
ORDER BY id DESC LIMIT :limit;

-- name: view_list_customer
SELECT {delivery} FROM delivery
WHERE tenant = :tenant AND customer = :customer AND id < :before
  AND (:group = '' OR grp = :group)
  AND (:channel = '' OR channel = :channel) AND (:account = '' OR account = :account)
  AND (:category = '' OR category = :category) AND (:state = '' OR state = :state)
  AND due_at >= :since AND due_at < :until
ORDER BY id DESC LIMIT :limit;

-- name: view_list_group
SELECT {delivery} FROM delivery
WHERE reminder_id IN (SELECT id FROM reminder WHERE tenant = :tenant AND grp = :group AND grp <> '') AND id < :before
  AND (:channel = '' OR channel = :channel) AND (:account = '' OR account = :account)
  AND (:category = '' OR category = :category) AND (:state = '' OR state = :state)
  AND due_at >= :since AND due_at < :until
ORDER BY id DESC LIMIT :limit;

-- In the order of the due times, behind (after_due, after_id).
-- name: view_list_due
SELECT {delivery} FROM delivery
WHERE due_at >= :since AND due_at < :until AND (due_at, id) > (:after_due, :after_id)
  AND tenant || '' = :tenant
  AND (:channel = '' OR channel = :channel) AND (:account = '' OR account = :account)
  AND (:category = '' OR category = :category) AND (:state = '' OR state = :state)
ORDER BY due_at, id LIMIT :limit;

-- name: view_passes_before
SELECT id, trigger, process, started_at, finished_at, mark_before, mark_after, counts, complete FROM pass_run
WHERE id < :before ORDER BY id DESC LIMIT :limit;
