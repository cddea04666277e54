
-- What only PostgreSQL needs.

-- One row per writing connection, with the number of its last commit. The number is raised by the commit
-- itself: when the connection is lost under one, the row tells whether it happened (see `postgres`).
CREATE TABLE writer (
    id     TEXT PRIMARY KEY,
    number BIGINT NOT NULL,
    at     BIGINT NOT NULL            -- when it last committed; calendar
) WITH (fillfactor = 50);
