-- PostgreSQL's schema 6: equal in meaning to the embedded database's schema 7 (`../7.sql`). Never edit a schema
-- that was released: add the next file.

-- The name of its host is what its own user said, and no service, admin or enrolled agent: a fence by that name does not take it.
ALTER TABLE attachments ADD COLUMN claimed BIGINT NOT NULL DEFAULT 0 CHECK (claimed IN (0, 1));

-- Whose a name of an initiator is.
CREATE INDEX attachments_by_initiator ON attachments (initiator, host) WHERE held = 1;
CREATE INDEX fc_luns_by_port ON fc_luns (wwpn) WHERE volume_id IS NOT NULL;

-- Who said it was not kept: where two disagree, nobody did.
UPDATE attachments SET claimed = 1 WHERE native IS NULL AND initiator IS NOT NULL AND EXISTS
    (SELECT 1 FROM attachments o WHERE o.initiator = attachments.initiator AND o.host <> attachments.host);
