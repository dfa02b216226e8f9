-- PostgreSQL's schema 2: equal in meaning to the embedded database's schema 3 (`../3.sql`). Never edit a schema
-- that was released: add the next file.

-- What kind of review: it decides what ends one. Until now the text did, and says once more what it was.
ALTER TABLE volumes ADD COLUMN review_kind TEXT COLLATE "C";
UPDATE volumes SET review_kind = CASE
    WHEN review LIKE 'the controller''s database was restored or rebuilt, and %' THEN 'restored'
    WHEN review LIKE '% has lost its store and has no data of this volume %' THEN 'lost'
    WHEN review LIKE '% has nothing of this volume: %' THEN 'missing'
    WHEN review LIKE '%: this database may be an older state; %' THEN 'refused'
    ELSE 'ahead'
END WHERE review IS NOT NULL;

-- Whether an agent was compared with this database since that was made or restored. Before, what it keeps of the present epoch
-- is of another history.
ALTER TABLE agents ADD COLUMN compared BIGINT NOT NULL DEFAULT 0 CHECK (compared IN (0, 1));
UPDATE agents SET compared = 1;

-- While a volume grows to `size_gib`: the size that it has.
ALTER TABLE volumes ADD COLUMN grows_from BIGINT CHECK (grows_from > 0);

CREATE TABLE fences (
    id         TEXT COLLATE "C" PRIMARY KEY,
    name       TEXT COLLATE "C" NOT NULL,
    reason     TEXT COLLATE "C",
    by_user    TEXT COLLATE "C" NOT NULL,
    by_request TEXT COLLATE "C" NOT NULL,
    fenced_us  BIGINT NOT NULL,
    lifted_us  BIGINT
);
CREATE UNIQUE INDEX fences_in_force ON fences (name) WHERE lifted_us IS NULL;
CREATE INDEX fences_by_age ON fences (fenced_us, id);

CREATE TABLE fenced (
    initiator TEXT COLLATE "C" NOT NULL,
    fence_id  TEXT COLLATE "C" NOT NULL REFERENCES fences (id),
    PRIMARY KEY (initiator, fence_id)
);
CREATE INDEX fenced_by_fence ON fenced (fence_id);

CREATE TABLE fence_parts (
    fence_id      TEXT COLLATE "C" NOT NULL REFERENCES fences (id),
    attachment_id TEXT COLLATE "C" NOT NULL,
    volume_id     TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (fence_id, attachment_id)
);
