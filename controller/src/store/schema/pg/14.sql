-- PostgreSQL's schema 14: equal in meaning to the embedded database's schema 15 (`../15.sql`). Never edit a schema
-- that was released: add the next file.

-- Operations of a volume and their results, one row for each kind; `volumes.operation` says which exclusive operation runs. `since_us`:
-- since when the row says this. `payload`: JSON, by kind; `true` where the kind alone says all. 'cut': the volume is isolated from its
-- disk. 'growth_taken_back': its growth is to be taken back. 'reservations': its storage agent's copy of persistent reservations.
-- 'revert': the snapshot to revert to. 'takes': the foreign logical volume to take over. 'upload': the last image export.
CREATE TABLE volume_operations (
    volume_id TEXT COLLATE "C" NOT NULL REFERENCES volumes (id) ON DELETE CASCADE,
    kind      TEXT COLLATE "C" NOT NULL
              CHECK (kind IN ('cut', 'growth_taken_back', 'reservations', 'revert', 'takes', 'upload')),
    since_us  BIGINT NOT NULL,
    payload   TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (volume_id, kind)
);

INSERT INTO volume_operations (volume_id, kind, since_us, payload)
    SELECT id, 'cut', CAST(hints::json -> 'cut' ->> 'since_us' AS BIGINT), 'true' FROM volumes
    WHERE hints::json -> 'cut' ->> 'since_us' ~ '^[0-9]{1,18}$';
INSERT INTO volume_operations (volume_id, kind, since_us, payload)
    SELECT v.id, j.key, COALESCE(v.updated_us, v.created_us), j.value::text
    FROM volumes v, json_each(v.hints::json) j
    WHERE j.key IN ('growth_taken_back', 'reservations', 'revert', 'takes', 'upload');

-- Only the hints of the volume's creator stay, and keys that no release has written.
UPDATE volumes
    SET hints = (hints::jsonb - ARRAY['cut', 'growth_taken_back', 'reservations', 'revert', 'takes', 'upload'])::text
    WHERE hints::jsonb ?| ARRAY['cut', 'growth_taken_back', 'reservations', 'revert', 'takes', 'upload'];

-- A controller of an earlier release that still runs would miss what has left this column: its statements fail instead.
ALTER TABLE volumes RENAME COLUMN hints TO placement_hints;
