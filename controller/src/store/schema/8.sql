-- Schema 8. Never edit a schema that was released: add the next file.

-- Identities on the wire. `naa`: made of the first 25 hex digits of an id, so that it stands for the id, too; or that of an export that
-- was adopted. `volume_id`: the first that had it. A row stays when its volume goes, so that no id is given twice. Ids that only agents
-- know (orphans, tombstones of before a restore) have rows, too.
CREATE TABLE identities (
    naa       TEXT PRIMARY KEY,
    volume_id TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO identities (naa, volume_id)
    SELECT '6001405' || substr(replace(id, '-', ''), 1, 25), MIN(id)
    FROM (SELECT id FROM volumes UNION SELECT volume_id AS id FROM specs) AS known
    GROUP BY '6001405' || substr(replace(id, '-', ''), 1, 25);
INSERT INTO identities (naa, volume_id)
    SELECT naa, MIN(id) FROM volumes
    WHERE naa IS NOT NULL AND naa NOT IN (SELECT naa FROM identities)
    GROUP BY naa;

-- Every volume has its NAA from the beginning. Volumes of one NAA that stand here already stay: they are found by this index.
UPDATE volumes SET naa = '6001405' || substr(replace(id, '-', ''), 1, 25) WHERE naa IS NULL;
CREATE INDEX volumes_by_naa ON volumes (naa);
