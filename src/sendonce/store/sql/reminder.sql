-- Reminders: what the business asked for.

-- name: reminder_find
SELECT {reminder} FROM reminder WHERE tenant = :tenant AND reminder = :reminder AND customer = :customer;

-- name: reminder_by_id
SELECT {reminder} FROM reminder WHERE id = :id;

-- name: reminder_insert
INSERT INTO reminder (
    tenant, reminder, customer, part, due_at, due_local, zone, expires_at, template, template_version,
    category, priority, grp, source, import_id, made_by, linked, data, recipients, spec_hash, version,
    created_at)
VALUES (
    :tenant, :reminder, :customer, :part, :due_at, :due_local, :zone, :expires_at, :template,
    :template_version, :category, :priority, :grp, :source, :import_id, :import_id, :linked, :data, :recipients,
    :spec_hash, :version, :created_at)
RETURNING id;

-- name: reminder_keep_revision
INSERT INTO revision (reminder_id, version, import_id, spec, at)
SELECT id, version, :import_id, :spec, :at FROM reminder WHERE id = :id;

-- name: reminder_revise
UPDATE reminder SET
    due_at = :due_at, due_local = :due_local, zone = :zone, expires_at = :expires_at, template = :template,
    template_version = :template_version, category = :category, priority = :priority, grp = :grp,
    source = :source, import_id = :import_id, data = :data, recipients = :recipients,
    spec_hash = :spec_hash, version = version + 1
WHERE id = :id;

-- name: reminder_reschedule
UPDATE reminder SET expires_at = expires_at + :due_at - due_at, due_at = :due_at WHERE id = :id;

-- name: reminder_touch
UPDATE reminder SET import_id = :import_id WHERE id = :id;

-- name: revision_of_import
SELECT reminder_id, version, spec FROM revision
WHERE import_id = :import_id AND import_id <> 0 AND reminder_id > :after
ORDER BY reminder_id, version LIMIT :limit;

-- How many of a source's reminders are still open, and how many of those this import listed.
-- name: source_size
SELECT count(*) AS total, coalesce(sum(CASE WHEN r.import_id = :import_id THEN 1 ELSE 0 END), 0) AS listed
FROM reminder r
WHERE r.tenant = :tenant AND r.source = :source AND r.source <> ''
  AND EXISTS (SELECT 1 FROM delivery d WHERE d.reminder_id = r.id AND d.ended_at = 0);
