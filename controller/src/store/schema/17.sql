-- Schema 17. Never edit a schema that was released: add the next file.

-- Attachments that `os-reserve` announced end by themselves, as announced detaches do. `reserved_until_us` identifies the last
-- announcement; NULL: an earlier release made it.
ALTER TABLE volumes ADD COLUMN reserved_until_us INTEGER;
CREATE INDEX volumes_reserved ON volumes (id) WHERE reserved > 0;

-- Old records go by age. `gone`: volumes and snapshots whose row went while they had specs, which are tombstones. `agent_id`: their
-- storage agent; NULL: an earlier release did not keep it. `gone_us`: since when all that is known of them is true.
CREATE TABLE gone (
    volume_id TEXT PRIMARY KEY,
    agent_id  TEXT,
    gone_us   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX gone_by_age ON gone (gone_us);
INSERT INTO gone (volume_id, gone_us)
    SELECT DISTINCT volume_id, CAST(strftime('%s', 'now') AS INTEGER) * 1000000 FROM specs
    WHERE volume_id NOT IN (SELECT id FROM volumes);

-- The newest generation of an id whose specs went by age. NULL: none of them did.
ALTER TABLE identities ADD COLUMN epoch INTEGER;
ALTER TABLE identities ADD COLUMN counter INTEGER;

-- `kept_us`: since when the receipt says what it says.
ALTER TABLE receipts ADD COLUMN kept_us INTEGER NOT NULL DEFAULT 0;
UPDATE receipts SET kept_us = CAST(strftime('%s', 'now') AS INTEGER) * 1000000;
CREATE INDEX receipts_by_age ON receipts (kept_us);
CREATE INDEX detached_by_receipt ON detached (receipt) WHERE receipt IS NOT NULL;
CREATE INDEX takings_by_receipt ON takings (receipt) WHERE receipt IS NOT NULL;
