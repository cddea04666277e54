-- What providers said later. {event} stands for the columns in the order of `sendonce.store.events`.

-- The same event, told again, is known by what the provider calls it.
-- name: event_put
INSERT INTO provider_event (
    account, identity, tenant, kind, receipt, send_key, address_tag, masked, occurred_at, received_at, code, text,
    look, next_at, tries, why, applied_at, delivery_id)
VALUES (
    :account, :identity, :tenant, :kind, :receipt, :send_key, :address_tag, :masked, :occurred_at, :received_at,
    :code, :text, :look, :next_at, 0, :why, :applied_at, 0)
ON CONFLICT (account, identity, tenant) DO NOTHING;

-- name: event_waiting
SELECT {event} FROM provider_event
WHERE look = 0 AND next_at <= :now ORDER BY next_at, id LIMIT :limit {skip_locked};

-- name: event_lock
SELECT {event} FROM provider_event WHERE id = :id AND look + 0 = 0 {skip_locked};

-- name: event_by_mark
SELECT d.id, d.tenant, d.key, d.channel, d.address_tag, d.state, c.version, d.version, d.account, d.attempts,
       d.maybe, d.receipt
FROM content c CROSS JOIN delivery d
WHERE c.mark = :mark AND d.id = c.delivery_id ORDER BY d.id, c.version;

-- name: event_by_receipt
SELECT d.id, d.tenant, d.key, d.channel, d.address_tag, d.state, 0, d.version, d.account, d.attempts,
       d.maybe, d.receipt
FROM ledger l CROSS JOIN delivery d
WHERE l.receipt = :receipt AND l.receipt <> '' AND d.id = l.delivery_id LIMIT 10;

-- name: event_end
UPDATE provider_event SET
    look = :look, why = :why, applied_at = :applied_at, delivery_id = :delivery_id, tries = tries + 1,
    masked = CASE WHEN CAST(:delivery_id AS BIGINT) = 0 THEN masked ELSE '' END
WHERE id = :id;

-- name: event_wait
UPDATE provider_event SET next_at = :next_at, why = :why, tries = tries + 1 WHERE id = :id;

-- By its number, never through all that is left to people.
-- name: event_retry
UPDATE provider_event SET look = 0, next_at = :next_at, tries = 0, why = ''
WHERE id = :id AND look + 0 IN (2, 3) AND (receipt <> '' OR send_key <> '' OR address_tag <> '');

-- name: event_old
SELECT id FROM provider_event WHERE delivery_id = 0 AND received_at < :before AND look <> 0
ORDER BY received_at LIMIT :limit;

-- name: event_forget
DELETE FROM provider_event WHERE id = :id AND look + 0 <> 0;

-- name: event_blank
UPDATE provider_event SET masked = '', text = '', address_tag = ''
WHERE delivery_id = :delivery_id AND delivery_id <> 0;

-- name: event_blank_address
UPDATE provider_event SET masked = '', text = '', address_tag = ''
WHERE tenant = :tenant AND address_tag = :address_tag AND address_tag <> '';

-- name: event_drop
DELETE FROM provider_event WHERE delivery_id = :delivery_id AND delivery_id <> 0;

-- Of one kind, said again, the earliest counts; its number stays.
-- name: facet_fold
INSERT INTO facet (delivery_id, kind, rank, at, code, behind, told_at)
VALUES (:delivery_id, :kind, :rank, :at, :code, :behind, :told_at)
ON CONFLICT (delivery_id, kind) DO UPDATE SET at = excluded.at, code = excluded.code
WHERE (excluded.at, excluded.code) < (facet.at, facet.code);

-- The highest number that was given to a facet, also to one that is not committed yet.
-- name: facet_given
SELECT {facet_given} AS number;

-- As `seal_writers`, for `facet_given`.
-- name: facet_writers
SELECT who FROM {facet_writers};

-- name: facet_numbers
SELECT number FROM facet WHERE delivery_id = :delivery_id;

-- name: facet_drop
DELETE FROM facet WHERE delivery_id = :delivery_id;

-- name: view_facets
SELECT kind, at, code FROM facet WHERE delivery_id = :delivery_id ORDER BY kind;

-- name: view_events_of
SELECT {event} FROM provider_event WHERE delivery_id = :delivery_id AND delivery_id <> 0
ORDER BY received_at, id LIMIT :limit;

-- name: view_event
SELECT {event} FROM provider_event WHERE id = :id;

-- name: view_events_people
SELECT {event} FROM provider_event WHERE look = :look AND look > 1 AND id > :after ORDER BY id LIMIT :limit;

-- Of one tenant, and of nobody that is known.
-- name: view_events_left
SELECT {event} FROM provider_event
WHERE look = :look AND look > 1 AND id > :after AND tenant IN ('', :tenant) ORDER BY id LIMIT :limit;

-- Received on a day, and left to people.
-- name: view_report_events
SELECT look, count(*) AS count FROM provider_event
WHERE look > 1 AND received_at >= :start AND received_at < :end AND (:tenant = '' OR tenant IN ('', :tenant))
GROUP BY look ORDER BY look;

-- name: view_events_people_total
SELECT look, count(*) AS count FROM provider_event WHERE look > 1 GROUP BY look ORDER BY look;

-- name: view_events_waiting
SELECT count(*) AS waiting, coalesce(min(received_at), 0) AS since FROM provider_event WHERE look = 0;

-- What stands for the deliveries of a day, and what was said beside.
-- name: view_report_facets
SELECT f.kind AS kind, count(*) AS count FROM delivery d CROSS JOIN facet f
WHERE d.due_at >= :start AND d.due_at < :end AND (:tenant = '' OR d.tenant = :tenant) AND f.delivery_id = d.id
  AND (f.rank = 0 OR f.rank = (SELECT max(rank) FROM facet o WHERE o.delivery_id = d.id))
GROUP BY f.kind ORDER BY f.kind;
