-- Schema 15. Never edit a schema that was released: add the next file.

-- Operations of a volume and their results, one row for each kind; `volumes.operation` says which exclusive operation runs. `since_us`:
-- since when the row says this. `payload`: JSON, by kind; `true` where the kind alone says all. 'cut': the volume is isolated from its
-- disk. 'growth_taken_back': its growth is to be taken back. 'reservations': its storage agent's copy of persistent reservations.
-- 'revert': the snapshot to revert to. 'takes': the foreign logical volume to take over. 'upload': the last image export.
CREATE TABLE volume_operations (
    volume_id TEXT NOT NULL REFERENCES volumes (id) ON DELETE CASCADE,
    kind      TEXT NOT NULL CHECK (kind IN ('cut', 'growth_taken_back', 'reservations', 'revert', 'takes', 'upload')),
    since_us  INTEGER NOT NULL,
    payload   TEXT NOT NULL,
    PRIMARY KEY (volume_id, kind)
) STRICT, WITHOUT ROWID;

INSERT INTO volume_operations (volume_id, kind, since_us, payload)
    SELECT id, 'cut', hints ->> '$.cut.since_us', 'true' FROM volumes
    WHERE json_type(hints, '$.cut.since_us') = 'integer';
INSERT INTO volume_operations (volume_id, kind, since_us, payload)
    SELECT v.id, j.key, COALESCE(v.updated_us, v.created_us), v.hints -> j.key FROM volumes v, json_each(v.hints) j
    WHERE j.key IN ('growth_taken_back', 'reservations', 'revert', 'takes', 'upload');

-- Only the hints of the volume's creator stay, and keys that no release has written.
UPDATE volumes SET hints = json_remove(hints, '$.cut', '$.growth_taken_back', '$.reservations', '$.revert', '$.takes', '$.upload')
    WHERE EXISTS (
        SELECT 1 FROM json_each(volumes.hints) j
        WHERE j.key IN ('cut', 'growth_taken_back', 'reservations', 'revert', 'takes', 'upload')
    );

-- A controller of an earlier release that still runs would miss what has left this column: its statements fail instead.
ALTER TABLE volumes RENAME COLUMN hints TO placement_hints;
