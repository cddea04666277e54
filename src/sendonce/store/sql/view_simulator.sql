-- What the simulator holds the product against, after every transaction and at the end of a run.

-- name: view_simulator_since
SELECT l.id, l.seq, l.at, l.event, l.body, l.hash,
       d.key, d.address_tag, d.account, d.expires_at, d.state, d.epoch AS row_epoch, d.seq AS row_seq,
       d.head AS row_head
FROM ledger l JOIN delivery d ON d.id = l.delivery_id WHERE l.id > :after ORDER BY l.id LIMIT :limit;

-- name: view_simulator_last
SELECT max(id) AS id FROM ledger;

-- name: view_simulator_ledger
SELECT id, delivery_id, seq, at, event, body, hash FROM ledger ORDER BY id;

-- name: view_simulator_deliveries
SELECT {delivery}, part, coalesce(look, -9) AS look, coalesce(via, '') AS via, coalesce(at, 0) AS at,
       coalesce(place, 0) AS place, coalesce(until, 0) AS until
FROM delivery LEFT JOIN agenda ON delivery_id = id ORDER BY id;

-- name: view_simulator_gates
SELECT account, limits, closed_until, closed_why, paused_until, state, version FROM gate ORDER BY account;

-- name: view_simulator_calls
SELECT delivery_id, epoch, account, process, claimed_at, slot_at, send_deadline FROM open_call
ORDER BY delivery_id, epoch;

-- name: view_simulator_preferences
SELECT tenant, channel, address_tag, category, kind, at, source, evidence, actor FROM preference
ORDER BY tenant, channel, address_tag, category, kind;

-- name: view_simulator_processes
SELECT id, role, started_at, beat_at, lease_until, stopped FROM process ORDER BY id;

-- name: view_simulator_story
SELECT l.at, l.body FROM ledger l JOIN delivery d ON d.id = l.delivery_id WHERE d.key = :key ORDER BY l.seq;

-- name: view_simulator_events
SELECT e.account, e.identity, e.kind, e.look, e.tries, e.why, e.send_key, e.received_at,
       coalesce(d.key, '') AS key,
       coalesce((SELECT min(l.at) FROM ledger l WHERE l.receipt = e.receipt AND l.receipt <> ''), 0) AS known_at
FROM provider_event e LEFT JOIN delivery d ON d.id = e.delivery_id ORDER BY e.account, e.identity, e.tenant;

-- name: view_simulator_facets
SELECT delivery_id, kind, rank, at, code FROM facet ORDER BY delivery_id, kind;

-- Each delivery that is there, what its text has left, and whether its address may never be written to again.
-- name: view_simulator_kept
SELECT d.key, r.recipients, (SELECT count(*) FROM content c WHERE c.delivery_id = d.id) AS texts,
       CASE WHEN EXISTS (
           SELECT 1 FROM preference p
           WHERE p.tenant = d.tenant AND p.channel = d.channel AND p.address_tag = d.address_tag
             AND p.kind = 'suppressed') THEN 1 ELSE 0 END AS suppressed
FROM delivery d JOIN reminder r ON r.id = d.reminder_id ORDER BY d.id;

-- name: view_simulator_removed
SELECT count(*) AS removed FROM removed;

-- name: view_simulator_seals
SELECT number, header, hash, leaves FROM seal ORDER BY number;

-- name: view_simulator_tombstones
SELECT number, at, body, hash FROM tombstone ORDER BY number;
