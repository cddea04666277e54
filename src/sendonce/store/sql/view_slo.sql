-- How a channel kept its objectives: deliveries that fell due in a span, each looked at by its own ledger. A span is
-- a day at most, so that one statement stays short.

-- name: view_slo
SELECT account, count(*) AS due,
       sum(CASE WHEN night = 0 AND (published_at > 0 OR unsent = 1) THEN 1 ELSE 0 END) AS publish,
       sum(CASE WHEN night = 0 AND published_at > 0 AND published_at - due_at <= :published_us
                THEN 1 ELSE 0 END) AS published,
       sum(CASE WHEN night = 0 AND (accepted_at > 0 OR failed = 1) THEN 1 ELSE 0 END) AS accept,
       sum(CASE WHEN night = 0 AND accepted_at > 0 AND accepted_at - due_at <= :accepted_us
                THEN 1 ELSE 0 END) AS accepted,
       sum(CASE WHEN accepted_at > 0 THEN 1 ELSE 0 END) AS sent,
       sum(CASE WHEN accepted_at > 0 AND received_at > 0 THEN 1 ELSE 0 END) AS told,
       sum(CASE WHEN accepted_at > 0 AND received_at > 0 AND received_at - accepted_at <= :received_us
                THEN 1 ELSE 0 END) AS received,
       sum(CASE WHEN accepted_at > 0 AND again > 0 THEN 1 ELSE 0 END) AS again,
       sum(CASE WHEN redriven > 0 OR died_at > 0 AND :now - died_at > :recovered_us THEN 1 ELSE 0 END) AS recover,
       sum(CASE WHEN redriven > 0 THEN 1 ELSE 0 END) AS recovered
FROM (
    SELECT account, due_at,
           coalesce((SELECT min(at) FROM ledger l WHERE l.delivery_id = d.id AND event = 'published'), 0)
               AS published_at,
           (SELECT count(*) FROM ledger l WHERE l.delivery_id = d.id AND event = 'deferred'
               AND body LIKE '%"quiet_hours"%') AS night,
           (SELECT count(*) FROM ledger l WHERE l.delivery_id = d.id AND event = 'late_outcome'
               AND body LIKE '%"outcome":"accepted"%') AS again,
           (SELECT count(*) FROM ledger l WHERE l.delivery_id = d.id AND event = 'redriven') AS redriven,
           coalesce((SELECT min(at) FROM facet f WHERE f.delivery_id = d.id AND kind = 'delivered'), 0)
               AS received_at,
           CASE WHEN state = 'ACCEPTED' THEN ended_at ELSE 0 END AS accepted_at,
           CASE WHEN state IN ('DEAD', 'REJECTED') THEN ended_at ELSE 0 END AS died_at,
           CASE WHEN state = 'EXPIRED' OR state = 'SCHEDULED' AND :now - due_at > :published_us
                THEN 1 ELSE 0 END AS unsent,
           CASE WHEN state IN ('EXPIRED', 'DEAD') OR :now - due_at > :accepted_us
                     AND state IN ('SCHEDULED', 'QUEUED', 'SENDING', 'RECONCILING', 'UNCERTAIN')
                THEN 1 ELSE 0 END AS failed
    FROM delivery d
    WHERE due_at >= :start AND due_at < :end AND due_at <= :now AND channel = :channel
) AS judged
GROUP BY account;

-- The worst of them: what was taken last after its due time, and what never was.
-- name: view_slo_worst
SELECT key, tenant, state, due_at, ended_at FROM delivery
WHERE due_at >= :start AND due_at < :end AND due_at <= :now AND channel = :channel
  AND (state IN ('EXPIRED', 'DEAD') OR state = 'ACCEPTED' AND ended_at - due_at > :accepted_us
       OR ended_at = 0 AND :now - due_at > :accepted_us)
ORDER BY CASE WHEN state IN ('EXPIRED', 'DEAD') THEN :now ELSE ended_at - due_at END DESC, id LIMIT :limit;
