-- Work that a person started and that goes on by itself (a redrive, a move between accounts): who, since when, how far.
CREATE TABLE batch (
    tenant     TEXT   NOT NULL,
    id         TEXT   NOT NULL,
    kind       TEXT   NOT NULL,
    actor      TEXT   NOT NULL,
    begun_at   BIGINT NOT NULL,
    told_at    BIGINT NOT NULL,       -- when it was last heard of
    ended_at   BIGINT NOT NULL,       -- 0: it runs
    progress   TEXT   NOT NULL,       -- JSON
    PRIMARY KEY (tenant, id)
){clustered};
CREATE UNIQUE INDEX batch_running ON batch (tenant) WHERE ended_at = 0;
CREATE INDEX batch_told ON batch (told_at);
