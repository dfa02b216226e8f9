-- PostgreSQL's schema 16: equal in meaning to the embedded database's schema 17 (`../17.sql`). Never edit a schema
-- that was released: add the next file.

-- Attachments that `os-reserve` announced end by themselves, as announced detaches do. `reserved_until_us` identifies the last
-- announcement; NULL: an earlier release made it.
ALTER TABLE volumes ADD COLUMN IF NOT EXISTS reserved_until_us BIGINT;
CREATE INDEX IF NOT EXISTS volumes_reserved ON volumes (id) WHERE reserved > 0;

-- Old records go by age. `gone`: volumes and snapshots whose row went while they had specs, which are tombstones. `agent_id`: their
-- storage agent; NULL: an earlier release did not keep it. `gone_us`: since when all that is known of them is true.
CREATE TABLE IF NOT EXISTS gone (
    volume_id TEXT COLLATE "C" PRIMARY KEY,
    agent_id  TEXT COLLATE "C",
    gone_us   BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS gone_by_age ON gone (gone_us);
INSERT INTO gone (volume_id, gone_us)
    SELECT DISTINCT volume_id, CAST(EXTRACT(EPOCH FROM now()) * 1000000 AS BIGINT) FROM specs
    WHERE volume_id NOT IN (SELECT id FROM volumes)
    ON CONFLICT (volume_id) DO NOTHING;

-- The newest generation of an id whose specs went by age. NULL: none of them did.
ALTER TABLE identities ADD COLUMN IF NOT EXISTS epoch BIGINT, ADD COLUMN IF NOT EXISTS counter BIGINT;

-- `kept_us`: since when the receipt says what it says.
ALTER TABLE receipts ADD COLUMN IF NOT EXISTS kept_us BIGINT NOT NULL DEFAULT 0;
UPDATE receipts SET kept_us = CAST(EXTRACT(EPOCH FROM now()) * 1000000 AS BIGINT);
CREATE INDEX IF NOT EXISTS receipts_by_age ON receipts (kept_us);
CREATE INDEX IF NOT EXISTS detached_by_receipt ON detached (receipt) WHERE receipt IS NOT NULL;
CREATE INDEX IF NOT EXISTS takings_by_receipt ON takings (receipt) WHERE receipt IS NOT NULL;
