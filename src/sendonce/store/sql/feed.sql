-- The feed of an application: the ledger of its tenant, in the order of the entries' numbers.

-- What is left out here is `core.feed.UNTOLD`: most of a ledger.
-- name: view_feed
SELECT ledger.id AS id, ledger.seq AS seq, ledger.at AS at, ledger.event AS event, ledger.body AS body,
       delivery.key AS key, delivery.customer AS customer, delivery.channel AS channel, delivery.grp AS grp,
       delivery.category AS category, delivery.account AS account
FROM ledger CROSS JOIN delivery
WHERE ledger.id > :after AND ledger.id <= :upto AND delivery.id = ledger.delivery_id
  AND delivery.tenant = :tenant
  AND ledger.event NOT IN (
      'scheduled', 'published', 'deferred', 'revised', 'rerouted', 'claimed', 'duplicate_observed',
      'late_outcome')
ORDER BY ledger.id LIMIT :limit;

-- The first entry of a stretch of numbers.
-- name: view_feed_first
SELECT id, at FROM ledger WHERE id > :after AND id <= :upto ORDER BY id LIMIT 1;
