-- Taking away for good: what erasing a person destroys, and what is removed once it was kept long enough.

-- name: erasure_put
INSERT INTO erasure (tenant, customer, asked_at, actor, reason, may_write)
VALUES (:tenant, :customer, :asked_at, :actor, :reason, :may_write)
ON CONFLICT (tenant, customer) DO NOTHING;

-- name: erasure_page
SELECT tenant, customer, asked_at, actor, reason, may_write FROM erasure ORDER BY tenant, customer LIMIT :limit;

-- name: erasure_done
DELETE FROM erasure WHERE tenant = :tenant AND customer = :customer;

-- What it says and to whom; a hash of that is nearly as good as the text to whoever can guess it.
-- name: reminder_empty
UPDATE reminder SET
    data = '{}', recipients = '{}', spec_hash = CASE WHEN :erased = 1 THEN '' ELSE spec_hash END
WHERE id = :id;

-- name: revision_drop
DELETE FROM revision WHERE reminder_id = :reminder_id;

-- name: content_drop
DELETE FROM content WHERE delivery_id = :delivery_id;

-- name: preference_blank
UPDATE preference SET masked = '', evidence = ''
WHERE tenant = :tenant AND channel = :channel AND address_tag = :address_tag AND (masked <> '' OR evidence <> '');

-- All that applications handed in and nobody has taken in, whether it waits or is parked.
-- name: intake_all
SELECT id, tenant, body, asked_at, asked_by FROM intake WHERE id > :after ORDER BY id LIMIT :limit;

-- The next id that there is: after years of removals the first spans are empty.
-- name: retention_from
SELECT coalesce(min(id), 0) AS id FROM delivery WHERE id > :after;

-- Reminders of which a delivery in this span of ids ended long enough ago. Whoever removes asks all its deliveries.
-- name: retention_old
SELECT reminder_id FROM delivery
WHERE id > :after AND id <= :upto AND ended_at > 0 AND ended_at < :before AND state NOT IN ('DEAD', 'REJECTED');

-- The same of those that still say something.
-- name: retention_full
SELECT r.id FROM delivery d CROSS JOIN reminder r
WHERE d.id > :after AND d.id <= :upto AND d.ended_at > 0 AND d.ended_at < :before
  AND d.state NOT IN ('DEAD', 'REJECTED') AND r.id = d.reminder_id AND r.recipients <> '{}';

-- The highest numbers there are: SQLite gives one again whose row is gone.
-- name: retention_newest
SELECT (SELECT coalesce(max(id), 0) FROM delivery) AS delivery,
       (SELECT coalesce(max(id), 0) FROM reminder) AS reminder,
       {last_entry} AS entry,
       coalesce((SELECT delivery_id FROM facet ORDER BY number DESC LIMIT 1), 0) AS told_of;

-- name: ledger_numbers
SELECT id, seq, body, hash FROM ledger WHERE delivery_id = :delivery_id ORDER BY seq;

-- name: ledger_drop
DELETE FROM ledger WHERE delivery_id = :delivery_id;

-- name: call_of
SELECT epoch FROM open_call WHERE account = :account AND delivery_id = :delivery_id;

-- name: outbox_drop
DELETE FROM outbox WHERE delivery_id = :delivery_id;

-- name: delivery_drop
DELETE FROM delivery WHERE id = :id AND seq = :seq;

-- name: reminder_drop
DELETE FROM reminder WHERE id = :id;

-- name: tombstone_last
SELECT number, at, body, hash FROM tombstone ORDER BY number DESC LIMIT 1;

-- name: tombstone_put
INSERT INTO tombstone (number, at, body, hash) VALUES (:number, :at, :body, :hash);

-- name: removed_put
INSERT INTO removed (
    tombstone, delivery_id, tenant, identity, due_at, channel, category, account, state, entries, head)
VALUES (
    :tombstone, :delivery_id, :tenant, :identity, :due_at, :channel, :category, :account, :state, :entries, :head);

-- name: removed_find
SELECT identity FROM removed WHERE identity = :identity LIMIT 1;

-- An import nobody can undo any more, since nothing that it made or revised is left.
-- name: import_forget
DELETE FROM import_run WHERE id IN (
    SELECT i.id FROM import_run i
    WHERE i.started_at < :before AND i.id < (SELECT max(id) FROM import_run)
      AND NOT EXISTS (SELECT 1 FROM reminder r WHERE r.made_by = i.id AND r.made_by <> 0)
      AND NOT EXISTS (SELECT 1 FROM revision v WHERE v.import_id = i.id AND v.import_id <> 0)
    ORDER BY i.id LIMIT :limit);

-- name: view_removed_any
SELECT coalesce(max(number), 0) AS number FROM tombstone;

-- name: view_tombstones
SELECT number, at, body, hash FROM tombstone WHERE number > :after ORDER BY number LIMIT :limit;

-- What is left of the deliveries of some tombstones, and whether one of them is there after all.
-- name: view_removed
SELECT tombstone, delivery_id, entries, head,
       CASE WHEN EXISTS (SELECT 1 FROM delivery d WHERE d.id = delivery_id) THEN 1 ELSE 0 END AS there
FROM removed WHERE tombstone > :after AND tombstone <= :upto ORDER BY tombstone, delivery_id;

-- name: view_report_removed
SELECT channel, category, account, state, count(*) AS count FROM removed
WHERE due_at >= :start AND due_at < :end AND (:tenant = '' OR tenant = :tenant)
GROUP BY channel, category, account, state;
