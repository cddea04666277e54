-- The first schema. One text for SQLite and PostgreSQL: TEXT, BIGINT (microseconds UTC, flags as 0/1),
-- opaque JSON as TEXT. Tokens: {id} a self-numbering primary key, {number} a self-numbered column, {key} a whole
-- number given as primary key, {clustered} a table that is its primary key.
--
-- What a stage looks for stands in `agenda`, one narrow row for each delivery that anybody has to look at, under
-- partial indexes: a table full of finished or future rows costs nothing. No column of `delivery` that an index
-- covers changes in its life, so that to claim and to settle one touches its row alone. What is wide or read
-- once (`reminder`, `content`, `ledger`) lies apart.

CREATE TABLE meta (
    name   TEXT PRIMARY KEY,
    value  TEXT NOT NULL
);

-- What the business asked for: one reminder to one customer, over one or more channels.
CREATE TABLE reminder (
    id          {id},
    tenant      TEXT   NOT NULL,
    reminder    TEXT   NOT NULL,
    customer    TEXT   NOT NULL,
    part        BIGINT NOT NULL,      -- hash of the customer: by it rows can be spread over servers
    due_at      BIGINT NOT NULL,
    due_local   TEXT   NOT NULL,      -- local wall time and zone are kept: zone rules change
    zone        TEXT   NOT NULL,
    expires_at  BIGINT NOT NULL,
    template    TEXT   NOT NULL,
    template_version BIGINT NOT NULL, -- 0: the newest at publication
    category    TEXT   NOT NULL,
    priority    BIGINT NOT NULL,
    grp         TEXT   NOT NULL,
    source      TEXT   NOT NULL,      -- the named source that lists it, "" for none
    import_id   BIGINT NOT NULL,      -- the import that listed it last, 0 for none
    made_by     BIGINT NOT NULL,      -- the import that created it, 0 for none
    linked      TEXT   NOT NULL,      -- the delivery key that this one sends again, "" for none
    data        TEXT   NOT NULL,      -- JSON object for the template
    recipients  TEXT   NOT NULL,      -- JSON: channel -> {"to", "sender", "reply_to"}
    spec_hash   TEXT   NOT NULL,      -- of all of the above that the caller gave: unchanged or conflict
    version     BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    UNIQUE (tenant, reminder, customer)
);
CREATE INDEX reminder_group  ON reminder (tenant, grp)    WHERE grp <> '';
CREATE INDEX reminder_source ON reminder (tenant, source) WHERE source <> '';
CREATE INDEX reminder_made_by ON reminder (made_by)       WHERE made_by <> 0;

-- What a reminder said before each revision, so that an import can be undone.
CREATE TABLE revision (
    reminder_id BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    import_id   BIGINT NOT NULL,      -- the import that made the revision
    spec        TEXT   NOT NULL,
    at          BIGINT NOT NULL,
    PRIMARY KEY (reminder_id, version)
);
CREATE INDEX revision_import ON revision (import_id) WHERE import_id <> 0;

CREATE TABLE delivery (
    id           {id},
    tenant       TEXT   NOT NULL,
    key          TEXT   NOT NULL,
    reminder_id  BIGINT NOT NULL,
    customer     TEXT   NOT NULL,
    part         BIGINT NOT NULL,
    channel      TEXT   NOT NULL,
    address_tag  TEXT   NOT NULL,
    category     TEXT   NOT NULL,
    grp          TEXT   NOT NULL,
    priority     BIGINT NOT NULL,
    -- the standing: written by one statement only, `delivery_move`
    state        TEXT   NOT NULL,
    epoch        BIGINT NOT NULL,
    version      BIGINT NOT NULL,
    maybe        BIGINT NOT NULL,
    permit       BIGINT NOT NULL,
    ending       TEXT   NOT NULL,
    -- its course
    due_at       BIGINT NOT NULL,
    next_at      BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    account      TEXT   NOT NULL,
    tag          BIGINT NOT NULL,     -- place in the fair order of its account
    cost         BIGINT NOT NULL,     -- SMS parts; 1 for an email
    attempts     BIGINT NOT NULL,
    failures     BIGINT NOT NULL,
    throttles    BIGINT NOT NULL,
    first_try    BIGINT NOT NULL,     -- steady clock; 0: never tried under this content version
    last_try     BIGINT NOT NULL,
    receipt      TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    ended_at     BIGINT NOT NULL,
    seq          BIGINT NOT NULL,     -- entries in its ledger
    head         TEXT   NOT NULL,     -- hash of the last one
    UNIQUE (tenant, key)
);
CREATE INDEX delivery_due       ON delivery (due_at);
CREATE INDEX delivery_reminder  ON delivery (reminder_id);
CREATE INDEX delivery_customer  ON delivery (tenant, customer);
CREATE INDEX delivery_address   ON delivery (tenant, address_tag);

-- Who has to look at a delivery, and when. It follows from the delivery's row, and changes with it; one that
-- is SENDING or has ended well is not on it.
CREATE TABLE agenda (
    delivery_id {key},
    look        BIGINT NOT NULL,      -- 0: a pass; 1 fresh, 2 retry: a claim, and -1, -2 once `at` has come;
                                      -- RECONCILING 10, UNCERTAIN 11, DEAD 12, REJECTED 13
    via         TEXT   NOT NULL,      -- its account
    at          BIGINT NOT NULL,      -- its next_at
    place       BIGINT NOT NULL,      -- its tag
    until       BIGINT NOT NULL       -- its expires_at
);
CREATE INDEX agenda_pass      ON agenda (at, delivery_id)               WHERE look = 0;
CREATE INDEX agenda_ready     ON agenda (via, look, place, delivery_id) WHERE look > 0;
CREATE INDEX agenda_waiting   ON agenda (via, at)                       WHERE look < 0;
CREATE INDEX agenda_unsent    ON agenda (until)                         WHERE look < 10;
CREATE INDEX agenda_attention ON agenda (look, at, delivery_id)         WHERE look >= 10;

-- What a delivery says, frozen at publication. Apart from the ledger, which holds only its hash.
CREATE TABLE content (
    delivery_id BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    address     TEXT   NOT NULL,
    payload     TEXT   NOT NULL,      -- JSON of the rendered parts
    hash        TEXT   NOT NULL,
    template    TEXT   NOT NULL,
    template_version BIGINT NOT NULL,
    frozen_at   BIGINT NOT NULL,
    mark        BIGINT NOT NULL,      -- the beginning of its send key, by which a provider's event finds it
    PRIMARY KEY (delivery_id, version)
);
CREATE INDEX content_mark ON content (mark);

-- A lane: one row per open call, and only that long. Steady clock. In the order in which they were claimed, so
-- that who counts them passes over those that are gone (docs/decisions/0037-looking-past-what-is-dead.md).
CREATE TABLE open_call (
    delivery_id   BIGINT NOT NULL,
    epoch         BIGINT NOT NULL,
    account       TEXT   NOT NULL,
    process       TEXT   NOT NULL,
    claimed_at    BIGINT NOT NULL,
    slot_at       BIGINT NOT NULL,
    send_deadline BIGINT NOT NULL,
    PRIMARY KEY (account, claimed_at, delivery_id, epoch)
){clustered};

-- The gate of a provider account: see sendonce.core.pacing.
CREATE TABLE gate (
    account      TEXT PRIMARY KEY,
    configured   TEXT   NOT NULL,     -- the limits as configuration seeded them
    limits       TEXT   NOT NULL,     -- the limits in force
    closed_until BIGINT NOT NULL,
    closed_why   TEXT   NOT NULL,
    paused_until BIGINT NOT NULL,
    state        TEXT   NOT NULL,     -- JSON: the rest of the arithmetic
    version      BIGINT NOT NULL
);

-- The last tag of each flow (tenant, group, priority) in an account's fair order.
CREATE TABLE flow (
    account TEXT   NOT NULL,
    flow    TEXT   NOT NULL,
    tag     BIGINT NOT NULL,
    PRIMARY KEY (account, flow)
){clustered};

-- The relay's outbox: rows only where a broker carries hints.
CREATE TABLE outbox (
    delivery_id BIGINT NOT NULL,
    epoch       BIGINT NOT NULL,
    account     TEXT   NOT NULL,      -- whose queue it goes to
    place       BIGINT NOT NULL,      -- the delivery's tag: hints leave in fair order
    PRIMARY KEY (delivery_id, epoch)
){clustered};
CREATE INDEX outbox_line ON outbox (account, place, delivery_id);

-- What applications asked for inside their own transactions and nobody has taken in yet. Only PostgreSQL has
-- what fills it: see docs/outbox.md.
CREATE TABLE intake (
    id       {id},
    tenant   TEXT   NOT NULL,
    body     TEXT   NOT NULL,         -- JSON: the reminder, as it was asked for
    asked_at BIGINT NOT NULL,         -- calendar
    asked_by TEXT   NOT NULL,         -- the database user of the application
    parked   BIGINT NOT NULL,         -- 1: it cannot be taken in as it is, and waits for somebody
    field    TEXT   NOT NULL,         -- what is wrong with it
    why      TEXT   NOT NULL
);
CREATE INDEX intake_waiting ON intake (id) WHERE parked = 0;
CREATE INDEX intake_parked  ON intake (id) WHERE parked = 1;

CREATE TABLE ledger (
    id          {number},
    delivery_id BIGINT NOT NULL,
    seq         BIGINT NOT NULL,
    at          BIGINT NOT NULL,
    event       TEXT   NOT NULL,
    body        TEXT   NOT NULL,      -- the canonical text
    hash        TEXT   NOT NULL,
    receipt     TEXT   NOT NULL,      -- the receipt that this entry tells of, to find by; "" for none
    UNIQUE (delivery_id, seq)
);
CREATE INDEX ledger_receipt ON ledger (receipt) WHERE receipt <> '';

-- What providers called back with, as it was told: see sendonce.pipeline.events. No plain address. Taken in as
-- waiting; applied later.
CREATE TABLE provider_event (
    id          {id},
    account     TEXT   NOT NULL,      -- "": it came as returned mail, proven by its token alone
    identity    TEXT   NOT NULL,
    tenant      TEXT   NOT NULL,      -- whose tag the address has, "" where it has none
    kind        TEXT   NOT NULL,
    receipt     TEXT   NOT NULL,
    send_key    TEXT   NOT NULL,
    address_tag TEXT   NOT NULL,
    masked      TEXT   NOT NULL,
    occurred_at BIGINT NOT NULL,      -- 0: the provider does not say
    received_at BIGINT NOT NULL,
    code        TEXT   NOT NULL,
    text        TEXT   NOT NULL,      -- a customer's words
    look        BIGINT NOT NULL,      -- 0 waits, 1 done; for people: 2 unmatched, 3 faulty, 4 unclear
    next_at     BIGINT NOT NULL,
    tries       BIGINT NOT NULL,
    why         TEXT   NOT NULL,
    applied_at  BIGINT NOT NULL,      -- 0: not yet
    delivery_id BIGINT NOT NULL,      -- 0: none is known
    UNIQUE (account, identity, tenant)
);
CREATE INDEX provider_event_waiting  ON provider_event (next_at, id)          WHERE look = 0;
CREATE INDEX provider_event_people   ON provider_event (look, id)             WHERE look > 1;
CREATE INDEX provider_event_delivery ON provider_event (delivery_id)          WHERE delivery_id <> 0;
CREATE INDEX provider_event_address  ON provider_event (tenant, address_tag)  WHERE address_tag <> '';
CREATE INDEX provider_event_loose    ON provider_event (received_at)          WHERE delivery_id = 0;

-- What was said of a delivery, each kind once: see sendonce.core.provider_event. Beside the delivery, whose row
-- no event touches. Numbered as it came, for the feed.
CREATE TABLE facet (
    number      {number},
    delivery_id BIGINT NOT NULL,
    kind        TEXT   NOT NULL,
    rank        BIGINT NOT NULL,      -- 0: it stands for nothing
    at          BIGINT NOT NULL,
    code        TEXT   NOT NULL,
    behind      BIGINT NOT NULL,      -- the number of an entry of the ledger: told behind it, see pipeline.feed
    told_at     BIGINT NOT NULL,      -- when we learnt of it
    UNIQUE (delivery_id, kind)
);

CREATE TABLE preference (
    tenant      TEXT   NOT NULL,
    channel     TEXT   NOT NULL,
    address_tag TEXT   NOT NULL,
    category    TEXT   NOT NULL,      -- "*": all
    kind        TEXT   NOT NULL,
    at          BIGINT NOT NULL,
    source      TEXT   NOT NULL,
    evidence    TEXT   NOT NULL,
    masked      TEXT   NOT NULL,      -- for people's eyes
    actor       TEXT   NOT NULL,
    PRIMARY KEY (tenant, channel, address_tag, category, kind)
){clustered};

CREATE TABLE template (
    tenant   TEXT   NOT NULL,
    name     TEXT   NOT NULL,
    version  BIGINT NOT NULL,
    channel  TEXT   NOT NULL,
    subject  TEXT   NOT NULL,
    text     TEXT   NOT NULL,
    html     TEXT   NOT NULL,
    hash     TEXT   NOT NULL,
    added_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, name, version, channel)
);

CREATE TABLE import_run (
    id          {id},
    tenant      TEXT   NOT NULL,
    source      TEXT   NOT NULL,
    file        TEXT   NOT NULL,
    actor       TEXT   NOT NULL,
    started_at  BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,      -- 0 while it runs
    counts      TEXT   NOT NULL,
    undone_at   BIGINT NOT NULL
);

-- One row per process; its lease is the lease of everything it claimed. Steady clock.
CREATE TABLE process (
    id          TEXT PRIMARY KEY,
    role        TEXT   NOT NULL,
    channel     TEXT   NOT NULL,
    host        TEXT   NOT NULL,
    pid         BIGINT NOT NULL,
    started_at  BIGINT NOT NULL,      -- calendar
    beat_at     BIGINT NOT NULL,      -- calendar
    lease_until BIGINT NOT NULL,
    stopped     BIGINT NOT NULL
);

-- Who is being erased: here until nothing is left to destroy (docs/privacy.md).
CREATE TABLE erasure (
    tenant    TEXT   NOT NULL,
    customer  TEXT   NOT NULL,
    asked_at  BIGINT NOT NULL,
    actor     TEXT   NOT NULL,
    reason    TEXT   NOT NULL,
    may_write BIGINT NOT NULL,        -- 1: to the same addresses, should somebody schedule anew
    PRIMARY KEY (tenant, customer)
){clustered};

-- What was removed by policy, a row for each time, chained: see sendonce.core.tombstone.
CREATE TABLE tombstone (
    number {key},
    at     BIGINT NOT NULL,
    body   TEXT   NOT NULL,
    hash   TEXT   NOT NULL
);

-- What is left of each delivery that was removed: enough to send it never again, to count it, and to prove the
-- tombstone. No id of a person, no address tag.
CREATE TABLE removed (
    tombstone   BIGINT NOT NULL,
    delivery_id BIGINT NOT NULL,
    tenant      TEXT   NOT NULL,
    identity    TEXT   NOT NULL,      -- a keyed tag of its reminder
    due_at      BIGINT NOT NULL,
    channel     TEXT   NOT NULL,
    category    TEXT   NOT NULL,
    account     TEXT   NOT NULL,
    state       TEXT   NOT NULL,
    entries     BIGINT NOT NULL,
    head        TEXT   NOT NULL,
    PRIMARY KEY (tombstone, delivery_id)
){clustered};
CREATE INDEX removed_identity ON removed (identity);
CREATE INDEX removed_due      ON removed (due_at);

-- Who does what only one needs to do, until when (steady clock).
CREATE TABLE leader (
    role        TEXT PRIMARY KEY,
    process     TEXT   NOT NULL,
    lease_until BIGINT NOT NULL
);

CREATE TABLE pass_run (
    id          {id},
    trigger     TEXT   NOT NULL,
    process     TEXT   NOT NULL,
    started_at  BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    mark_before BIGINT NOT NULL,
    mark_after  BIGINT NOT NULL,
    counts      TEXT   NOT NULL,      -- JSON: published, deferred, expired, ...
    complete    BIGINT NOT NULL       -- 0: stopped at its bound with rows left
);

-- Pauses of a channel, a group or the scheduler; an account's pause is in its gate. Calendar clock.
CREATE TABLE pause (
    scope  TEXT   NOT NULL,
    name   TEXT   NOT NULL,
    until  BIGINT NOT NULL,
    reason TEXT   NOT NULL,
    actor  TEXT   NOT NULL,
    at     BIGINT NOT NULL,
    PRIMARY KEY (scope, name)
);

-- What people changed, outside any one delivery: limits, pauses, suppressions, releases.
CREATE TABLE audit (
    id     {id},
    at     BIGINT NOT NULL,
    actor  TEXT   NOT NULL,
    action TEXT   NOT NULL,
    target TEXT   NOT NULL,
    reason TEXT   NOT NULL,
    body   TEXT   NOT NULL
);

-- Who may use the HTTP API: see sendonce.core.access. Of the secret only a hash is here.
CREATE TABLE api_key (
    prefix     TEXT PRIMARY KEY,
    tenant     TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    hash       TEXT   NOT NULL,
    scopes     TEXT   NOT NULL,
    rate       BIGINT NOT NULL,       -- requests a second
    created_at BIGINT NOT NULL,
    created_by TEXT   NOT NULL,
    expires_at BIGINT NOT NULL,       -- 0: never
    used_at    BIGINT NOT NULL,       -- to the minute; 0: not yet
    revoked_at BIGINT NOT NULL        -- 0: it holds
);

-- What was asked over HTTP under an Idempotency-Key, and what was answered.
CREATE TABLE answered (
    tenant      TEXT   NOT NULL,
    name        TEXT   NOT NULL,      -- the key, as the client chose it
    fingerprint TEXT   NOT NULL,      -- of method, path and body
    begun_at    BIGINT NOT NULL,
    status      BIGINT NOT NULL,      -- 0: not answered yet
    answer      TEXT   NOT NULL,      -- compressed, base64
    keep_until  BIGINT NOT NULL,
    PRIMARY KEY (tenant, name)
){clustered};
CREATE INDEX answered_kept ON answered (keep_until);

-- The ledger's entries closed block by block: see sendonce.core.seal. Only ever added to.
CREATE TABLE seal (
    number    {key},
    header    TEXT   NOT NULL,        -- canonical JSON
    hash      TEXT   NOT NULL,
    signature TEXT   NOT NULL,        -- Ed25519 in base64; "": unsigned
    leaves    TEXT   NOT NULL         -- the hash of each entry, one behind the other, in base64
);
