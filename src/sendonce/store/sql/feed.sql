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

-- What providers said, in the order in which we learnt of it.
-- name: view_feed_facets
SELECT facet.number AS number, facet.behind AS behind, facet.kind AS kind, facet.at AS at, facet.code AS code,
       facet.told_at AS told_at, delivery.key AS key, delivery.customer AS customer,
       delivery.channel AS channel, delivery.grp AS grp, delivery.category AS category,
       delivery.account AS account, delivery.state AS state, delivery.maybe AS maybe,
       delivery.version AS version, delivery.receipt AS receipt
FROM facet CROSS JOIN delivery
WHERE facet.number > :after AND facet.number <= :upto AND delivery.id = facet.delivery_id
  AND delivery.tenant = :tenant
ORDER BY facet.number LIMIT :limit;

-- name: view_feed_facet_first
SELECT number AS id, told_at AS at FROM facet WHERE number > :after AND number <= :upto ORDER BY number LIMIT 1;

-- The first entry of a stretch of numbers.
-- name: view_feed_first
SELECT id, at FROM ledger WHERE id > :after AND id <= :upto ORDER BY id LIMIT 1;

-- The first entry of a stretch that is younger than an instant. One that lies ahead is of a clock that was wrong, and
-- holds nobody up.
-- name: view_poll_young
SELECT id FROM ledger WHERE id > :after AND id <= :upto AND at > :before AND at <= :now ORDER BY id LIMIT 1;

-- What an account's provider accepted in a stretch of numbers, later than an instant, of which it is not known how it
-- ended, and whose text was not destroyed: of a person who was erased nobody asks. The length, so that the index of receipts is not taken for it.
-- name: view_poll
SELECT ledger.id AS id, ledger.receipt AS receipt
FROM ledger CROSS JOIN delivery
WHERE ledger.id > :after AND ledger.id <= :upto AND ledger.at > :since AND length(ledger.receipt) > 0
  AND ledger.event IN ('accepted', 'proven')
  AND delivery.id = ledger.delivery_id AND delivery.account = :account AND delivery.state = 'ACCEPTED'
  AND delivery.receipt = ledger.receipt
  AND EXISTS (SELECT 1 FROM content WHERE content.delivery_id = delivery.id)
  AND NOT EXISTS (SELECT 1 FROM facet WHERE facet.delivery_id = delivery.id AND facet.rank >= :ended)
ORDER BY ledger.id LIMIT :limit;
