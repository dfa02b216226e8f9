-- Schema 1. Never edit a schema that was released: add the next file.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What is wanted of a volume ('volume') and of its export ('export'), each fenced by (epoch, counter) and digest.
-- epoch and counter are unsigned 64-bit numbers in the signed column: compare them in the program, not here.
CREATE TABLE specs (
    volume_id  TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('volume', 'export')),
    epoch      INTEGER NOT NULL,
    counter    INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    body       BLOB,
    opaque     BLOB    NOT NULL,
    tombstone  INTEGER NOT NULL CHECK (tombstone IN (0, 1)),
    destroy    INTEGER NOT NULL CHECK (destroy IN (0, 1)),
    updated_us INTEGER NOT NULL,
    PRIMARY KEY (volume_id, kind),
    CHECK ((tombstone = 1) = (body IS NULL)),
    CHECK (tombstone = 1 OR destroy = 0)
) STRICT, WITHOUT ROWID;

-- Records of revokes. A row that is not proven is never deleted.
CREATE TABLE receipts (
    id        INTEGER PRIMARY KEY,
    volume_id TEXT    NOT NULL,
    initiator TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    counter   INTEGER NOT NULL,
    body      BLOB    NOT NULL,
    proven    INTEGER NOT NULL CHECK (proven IN (0, 1)),
    began_us  INTEGER NOT NULL
) STRICT;

CREATE INDEX receipts_by_volume ON receipts (volume_id);
CREATE INDEX receipts_unproven ON receipts (id) WHERE proven = 0;
