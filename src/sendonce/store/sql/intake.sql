-- What applications asked for inside their own transactions. Found by state: a transaction that commits late has
-- lower ids than what was taken in meanwhile.

-- name: intake_waiting
SELECT id, tenant, body, asked_at, asked_by FROM intake WHERE parked = 0 ORDER BY id LIMIT :limit;

-- name: intake_lock
SELECT id FROM intake WHERE id = :id AND parked = 0 {skip_locked};

-- name: intake_remove
DELETE FROM intake WHERE id = :id;

-- name: intake_park
UPDATE intake SET parked = 1, field = :field, why = :why WHERE id = :id;

-- name: intake_retry
UPDATE intake SET parked = 0, field = '', why = '' WHERE id = :id AND parked = 1;

-- name: intake_drop
DELETE FROM intake WHERE id = :id AND parked = 1;

-- name: view_intake_parked
SELECT id, tenant, body, asked_at, asked_by, field, why FROM intake
WHERE parked = 1 AND id > :after ORDER BY id LIMIT :limit;

-- name: view_intake_waiting
SELECT count(*) AS waiting, coalesce(min(asked_at), 0) AS since FROM intake WHERE parked = 0;

-- name: view_intake_parked_total
SELECT count(*) AS parked FROM intake WHERE parked = 1;
