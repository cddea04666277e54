-- Blocks of sealed entries, and what may be sealed.

-- The highest number that was given to an entry, also to one that is not committed yet.
-- name: seal_given
SELECT {ledger_given} AS id;

-- The transactions that may hold entries which nobody else can see yet. To be asked after `seal_given`: whoever has
-- a number up to that one has had the lock on the table since before, and until after its commit can be seen.
-- name: seal_writers
SELECT who FROM {ledger_writers};

-- name: seal_entries
SELECT id, delivery_id, seq, hash FROM ledger WHERE id > :after AND id <= :upto ORDER BY id LIMIT :limit;

-- The same two of the audit, and what stands there.
-- name: seal_acts_given
SELECT {audit_given} AS id;

-- name: seal_acts_writers
SELECT who FROM {audit_writers};

-- name: seal_acts
SELECT id, at, actor, action, target, reason, body FROM audit
WHERE id > :after AND id <= :upto ORDER BY id LIMIT :limit;

-- name: seal_last
SELECT number, header, hash, signature, '' AS leaves FROM seal ORDER BY number DESC LIMIT 1;

-- name: seal_page
SELECT number, header, hash, signature, leaves FROM seal WHERE number > :after ORDER BY number LIMIT :limit;

-- name: seal_tombstone
SELECT number, hash FROM tombstone ORDER BY number DESC LIMIT 1;

-- name: seal_put
INSERT INTO seal (number, header, hash, signature, leaves)
VALUES (:number, :header, :hash, :signature, :leaves);

-- Who an entry belongs to, for the name of a fault.
-- name: seal_whose
SELECT body FROM ledger WHERE delivery_id = :delivery_id AND seq = :seq AND id = :id;
