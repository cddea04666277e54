-- What the user of the processes, sendonce_app, may do: read all, add to the record, and rewrite none of it. Run it as the
-- owner of the tables, after they were made and again after each new version; twice changes nothing:
--
--     psql --set ON_ERROR_STOP=1 --single-transaction --file rights.sql URL
--
-- docs/postgresql.md says more. Retention needs rights of its own: docs/privacy.md.

GRANT USAGE ON SCHEMA sendonce TO sendonce_app;
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA sendonce TO sendonce_app;
REVOKE UPDATE ON sendonce.ledger, sendonce.seal, sendonce.audit, sendonce.revision, sendonce.tombstone,
    sendonce.removed FROM sendonce_app;
GRANT DELETE ON sendonce.content, sendonce.revision, sendonce.erasure TO sendonce_app;  -- to erase a person
GRANT DELETE ON sendonce.agenda, sendonce.answered, sendonce.batch, sendonce.flow, sendonce.intake, sendonce.leader,
    sendonce.open_call, sendonce.outbox, sendonce.pass_run, sendonce.pause, sendonce.preference, sendonce.process, sendonce.provider_event,
    sendonce.writer TO sendonce_app;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA sendonce TO sendonce_app;
