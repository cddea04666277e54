-- Keys of the HTTP API, what was answered under an Idempotency-Key, and what a person started that goes on by itself.

-- name: key_put
INSERT INTO api_key (prefix, tenant, name, hash, scopes, rate, created_at, created_by, expires_at, used_at, revoked_at)
VALUES (:prefix, :tenant, :name, :hash, :scopes, :rate, :created_at, :created_by, :expires_at, 0, 0);

-- name: key_get
SELECT prefix, tenant, name, hash, scopes, rate, created_at, created_by, expires_at, used_at, revoked_at FROM api_key
WHERE prefix = :prefix;

-- name: key_list
SELECT prefix, tenant, name, hash, scopes, rate, created_at, created_by, expires_at, used_at, revoked_at FROM api_key
WHERE :tenant IN ('', tenant) ORDER BY created_at, prefix;

-- name: key_revoke
UPDATE api_key SET revoked_at = :at WHERE prefix = :prefix AND revoked_at = 0;

-- An end that is nearer stays.
-- name: key_expire
UPDATE api_key SET expires_at = :at WHERE prefix = :prefix AND (expires_at = 0 OR expires_at > :at);

-- name: key_touch
UPDATE api_key SET used_at = :at WHERE prefix = :prefix AND used_at < :before;

-- name: answered_begin
INSERT INTO answered (tenant, name, fingerprint, begun_at, status, answer, keep_until)
VALUES (:tenant, :name, :fingerprint, :at, 0, '', :keep_until)
ON CONFLICT (tenant, name) DO UPDATE SET begun_at = excluded.begun_at
WHERE answered.status = 0 AND answered.begun_at < :stale AND answered.fingerprint = excluded.fingerprint;

-- name: answered_get
SELECT fingerprint, begun_at, status, answer FROM answered WHERE tenant = :tenant AND name = :name;

-- name: answered_finish
UPDATE answered SET status = :status, answer = :answer, keep_until = :keep_until
WHERE tenant = :tenant AND name = :name AND status = 0 AND begun_at = :begun_at;

-- name: answered_drop
DELETE FROM answered WHERE tenant = :tenant AND name = :name AND status = 0 AND begun_at = :begun_at;

-- name: answered_forget
DELETE FROM answered WHERE (tenant, name) IN (
    SELECT tenant, name FROM answered WHERE keep_until < :now ORDER BY keep_until LIMIT :limit);

-- One that is not heard of any more has ended with its process.
-- name: batch_give_up
UPDATE batch SET ended_at = told_at WHERE tenant = :tenant AND ended_at = 0 AND told_at < :stale;

-- name: batch_begin
INSERT INTO batch (tenant, id, kind, actor, begun_at, told_at, ended_at, progress)
VALUES (:tenant, :id, :kind, :actor, :at, :at, 0, :progress) ON CONFLICT DO NOTHING;

-- name: batch_running
SELECT id FROM batch WHERE tenant = :tenant AND ended_at = 0;

-- name: batch_get
SELECT id, kind, actor, begun_at, told_at, ended_at, progress FROM batch WHERE tenant = :tenant AND id = :id;

-- name: batch_tell
UPDATE batch SET told_at = :at, ended_at = :ended_at, progress = :progress
WHERE tenant = :tenant AND id = :id AND ended_at = 0;

-- name: batch_forget
DELETE FROM batch WHERE (tenant, id) IN (
    SELECT tenant, id FROM batch WHERE told_at < :before ORDER BY told_at LIMIT :limit);
