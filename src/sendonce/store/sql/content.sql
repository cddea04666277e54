-- Frozen content, and the templates it came from.

-- name: content_put
INSERT INTO content (delivery_id, version, address, payload, hash, template, template_version, frozen_at, mark)
VALUES (:delivery_id, :version, :address, :payload, :hash, :template, :template_version, :frozen_at, :mark)
ON CONFLICT (delivery_id, version) DO UPDATE SET
    address = excluded.address, payload = excluded.payload, hash = excluded.hash,
    template = excluded.template, template_version = excluded.template_version,
    frozen_at = excluded.frozen_at;

-- name: content_get
SELECT delivery_id, version, address, payload, hash, template, template_version, frozen_at, mark
FROM content WHERE delivery_id = :delivery_id AND version = :version;

-- name: template_newest
SELECT tenant, name, version, channel, subject, text, html, hash, added_at FROM template
WHERE tenant = :tenant AND name = :name
  AND version = (SELECT max(version) FROM template WHERE tenant = :tenant AND name = :name)
ORDER BY channel;

-- name: template_version
SELECT tenant, name, version, channel, subject, text, html, hash, added_at FROM template
WHERE tenant = :tenant AND name = :name AND version = :version ORDER BY channel;

-- name: template_list
SELECT name, version, channel, hash, added_at FROM template
WHERE tenant = :tenant AND (name, version) > (:name, :version)
ORDER BY name, version, channel LIMIT :limit;

-- name: template_put
INSERT INTO template (tenant, name, version, channel, subject, text, html, hash, added_at)
VALUES (:tenant, :name, :version, :channel, :subject, :text, :html, :hash, :added_at);
