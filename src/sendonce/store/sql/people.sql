-- Preferences, and what people changed.

-- name: preference_of
SELECT kind, category, at, source FROM preference
WHERE tenant = :tenant AND channel = :channel AND address_tag = :address_tag;

-- name: preference_list
SELECT tenant, channel, address_tag, category, kind, at, source, evidence, masked, actor FROM preference
WHERE tenant = :tenant
  AND (channel, address_tag, category, kind) > (:channel, :address_tag, :category, :kind)
ORDER BY channel, address_tag, category, kind LIMIT :limit;

-- name: preference_put
INSERT INTO preference (tenant, channel, address_tag, category, kind, at, source, evidence, masked, actor)
VALUES (:tenant, :channel, :address_tag, :category, :kind, :at, :source, :evidence, :masked, :actor)
ON CONFLICT (tenant, channel, address_tag, category, kind) DO UPDATE SET
    at = excluded.at, source = excluded.source, evidence = excluded.evidence,
    masked = excluded.masked, actor = excluded.actor
WHERE excluded.at > preference.at;

-- name: preference_remove
DELETE FROM preference
WHERE tenant = :tenant AND channel = :channel AND address_tag = :address_tag AND category = :category
  AND kind = :kind;

-- name: audit_put
INSERT INTO audit (at, actor, action, target, reason, body)
VALUES (:at, :actor, :action, :target, :reason, :body);
