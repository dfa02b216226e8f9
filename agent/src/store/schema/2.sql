-- Schema 2: what is wanted of a connection ('connection') of this host. `revoked`, of a connection's tombstone: the target has
-- revoked this host. The table is made anew, because its CHECK cannot be changed.

CREATE TABLE specs_2 (
    volume_id  TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('volume', 'export', 'connection')),
    epoch      INTEGER NOT NULL,
    counter    INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    body       BLOB,
    opaque     BLOB    NOT NULL,
    tombstone  INTEGER NOT NULL CHECK (tombstone IN (0, 1)),
    destroy    INTEGER NOT NULL CHECK (destroy IN (0, 1)),
    revoked    INTEGER NOT NULL DEFAULT 0 CHECK (revoked IN (0, 1)),
    updated_us INTEGER NOT NULL,
    PRIMARY KEY (volume_id, kind),
    CHECK ((tombstone = 1) = (body IS NULL)),
    CHECK (tombstone = 1 OR (destroy = 0 AND revoked = 0)),
    CHECK (kind = 'connection' OR revoked = 0)
) STRICT, WITHOUT ROWID;

INSERT INTO specs_2 (volume_id, kind, epoch, counter, digest, body, opaque, tombstone, destroy, updated_us)
    SELECT volume_id, kind, epoch, counter, digest, body, opaque, tombstone, destroy, updated_us FROM specs;

DROP TABLE specs;

ALTER TABLE specs_2 RENAME TO specs;
