-- Schema 3. Never edit a schema that was released: add the next file.

-- What kind of review: it decides what ends one. Until now the text did, and says once more what it was.
ALTER TABLE volumes ADD COLUMN review_kind TEXT;
UPDATE volumes SET review_kind = CASE
    WHEN review LIKE 'the controller''s database was restored or rebuilt, and %' THEN 'restored'
    WHEN review LIKE '% has lost its store and has no data of this volume %' THEN 'lost'
    WHEN review LIKE '% has nothing of this volume: %' THEN 'missing'
    WHEN review LIKE '%: this database may be an older state; %' THEN 'refused'
    ELSE 'ahead'
END WHERE review IS NOT NULL;

-- Whether an agent was compared with this database since that was made or restored. Before, what it keeps of the present epoch
-- is of another history.
ALTER TABLE agents ADD COLUMN compared INTEGER NOT NULL DEFAULT 0 CHECK (compared IN (0, 1));
UPDATE agents SET compared = 1;

-- While a volume grows to `size_gib`: the size that it has.
ALTER TABLE volumes ADD COLUMN grows_from INTEGER CHECK (grows_from > 0);

-- Hosts that are cut off: none of these initiators is granted anything until the fence is lifted. Kept afterwards, as the record
-- of who cut off whom. `name`: as it was asked for (an enrolled host, the host of connectors, or an initiator's own name).
CREATE TABLE fences (
    id         TEXT    PRIMARY KEY,
    name       TEXT    NOT NULL,
    reason     TEXT,
    by_user    TEXT    NOT NULL,
    by_request TEXT    NOT NULL,
    fenced_us  INTEGER NOT NULL,
    lifted_us  INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX fences_in_force ON fences (name) WHERE lifted_us IS NULL;
CREATE INDEX fences_by_age ON fences (fenced_us, id);

-- Whom a fence cuts off.
CREATE TABLE fenced (
    initiator TEXT NOT NULL,
    fence_id  TEXT NOT NULL REFERENCES fences (id),
    PRIMARY KEY (initiator, fence_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX fenced_by_fence ON fenced (fence_id);

-- What a fence took away: each with a receipt of its own, while it goes and afterwards.
CREATE TABLE fence_parts (
    fence_id      TEXT NOT NULL REFERENCES fences (id),
    attachment_id TEXT NOT NULL,
    volume_id     TEXT NOT NULL,
    PRIMARY KEY (fence_id, attachment_id)
) STRICT, WITHOUT ROWID;
