-- Schema 1. Never edit a schema that was released: add the next file.
-- Times are microseconds since 1970. Generations' parts are unsigned in the signed column; counters never come near its end.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE volume_types (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    description TEXT,
    is_public   INTEGER NOT NULL CHECK (is_public IN (0, 1)),
    created_us  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX volume_types_by_name ON volume_types (name);

CREATE TABLE extra_specs (
    type_id TEXT NOT NULL REFERENCES volume_types (id) ON DELETE CASCADE,
    key     TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (type_id, key)
) STRICT, WITHOUT ROWID;

-- Agents by the name that the configuration gives them. One id and one initiator belong to one name.
CREATE TABLE agents (
    name         TEXT PRIMARY KEY,
    agent_id     TEXT NOT NULL,
    initiator    TEXT,
    portals      TEXT NOT NULL,
    capabilities BLOB,
    hello_us     INTEGER NOT NULL,
    report_us    INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX agents_by_id ON agents (agent_id);
CREATE UNIQUE INDEX agents_by_initiator ON agents (initiator) WHERE initiator IS NOT NULL;

-- `operation` is what runs on the volume, apart from what its attachments say; `status` is derived from both.
CREATE TABLE volumes (
    id            TEXT PRIMARY KEY,
    name          TEXT,
    description   TEXT,
    size_gib      INTEGER NOT NULL CHECK (size_gib > 0),
    type_id       TEXT NOT NULL REFERENCES volume_types (id),
    multiattach   INTEGER NOT NULL CHECK (multiattach IN (0, 1)),
    operation     TEXT,
    status        TEXT NOT NULL,
    attach_status TEXT NOT NULL,
    project       TEXT NOT NULL,
    user          TEXT NOT NULL,
    metadata      TEXT NOT NULL,
    agent_id      TEXT NOT NULL,
    pool          TEXT NOT NULL,
    -- What the target's agent said of the export: where hosts log in.
    target        TEXT,
    naa           TEXT,
    portals       TEXT NOT NULL DEFAULT '',
    -- Why nothing is sent for this volume: the agents know something newer.
    review        TEXT,
    created_us    INTEGER NOT NULL,
    updated_us    INTEGER,
    fault         TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX volumes_by_project ON volumes (project, created_us);
CREATE INDEX volumes_by_agent ON volumes (agent_id);
CREATE INDEX volumes_by_type ON volumes (type_id);

-- `grant_wanted`: its nexus is in the wished export for it; `wish_*`: since which generation of the export.
-- `held`: its grant may be at the agent, until that has said otherwise. `connect_wanted`: it is in the wished connection of its host. `granted`: its grant was seen in the kernel.
CREATE TABLE attachments (
    id             TEXT PRIMARY KEY,
    volume_id      TEXT NOT NULL REFERENCES volumes (id),
    project        TEXT NOT NULL,
    instance       TEXT,
    mode           TEXT NOT NULL CHECK (mode IN ('rw', 'ro')),
    status         TEXT NOT NULL,
    connector      TEXT,
    initiator      TEXT,
    host           TEXT,
    mountpoint     TEXT,
    native         TEXT,
    grant_wanted   INTEGER NOT NULL CHECK (grant_wanted IN (0, 1)),
    granted        INTEGER NOT NULL CHECK (granted IN (0, 1)),
    held           INTEGER NOT NULL CHECK (held IN (0, 1)),
    connect_wanted INTEGER NOT NULL CHECK (connect_wanted IN (0, 1)),
    connect_ever   INTEGER NOT NULL CHECK (connect_ever IN (0, 1)),
    forced         INTEGER NOT NULL CHECK (forced IN (0, 1)),
    wish_epoch     INTEGER NOT NULL,
    wish_counter   INTEGER NOT NULL,
    steps          TEXT NOT NULL DEFAULT '[]',
    created_us     INTEGER NOT NULL,
    attached_us    INTEGER,
    fault          TEXT,
    CHECK (grant_wanted = 0 OR initiator IS NOT NULL),
    CHECK (connect_wanted = 0 OR native IS NOT NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX attachments_by_volume ON attachments (volume_id, created_us);
CREATE INDEX attachments_by_native ON attachments (native) WHERE native IS NOT NULL;
CREATE UNIQUE INDEX attachments_by_place ON attachments (volume_id, instance, host)
    WHERE instance IS NOT NULL AND host IS NOT NULL;

-- Attachments that are gone: whose they were, so that an id is never used again and a receipt finds its reader.
CREATE TABLE detached (
    id          TEXT PRIMARY KEY,
    volume_id   TEXT NOT NULL,
    project     TEXT NOT NULL,
    initiator   TEXT,
    receipt     INTEGER,
    detached_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Credentials of a nexus: as long as it has an attachment.
CREATE TABLE nexuses (
    volume_id     TEXT NOT NULL,
    initiator     TEXT NOT NULL,
    user          TEXT NOT NULL,
    secret        TEXT NOT NULL,
    mutual_user   TEXT,
    mutual_secret TEXT,
    PRIMARY KEY (volume_id, initiator)
) STRICT, WITHOUT ROWID;

-- What is wished, as it is sent: 'volume' and 'export' (agent_id ''), 'connection' per host. Kept after the tombstone, so that
-- a generation is never used again.
CREATE TABLE specs (
    volume_id TEXT    NOT NULL,
    kind      TEXT    NOT NULL CHECK (kind IN ('volume', 'export', 'connection')),
    agent_id  TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    counter   INTEGER NOT NULL,
    digest    BLOB    NOT NULL,
    body      BLOB,
    opaque    BLOB    NOT NULL,
    -- Tombstones: volumes' data is destroyed; connections were revoked.
    hard      INTEGER NOT NULL CHECK (hard IN (0, 1)),
    -- Connections: the tombstone is known to be true.
    settled   INTEGER NOT NULL CHECK (settled IN (0, 1)),
    PRIMARY KEY (volume_id, kind, agent_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX specs_unsettled ON specs (agent_id) WHERE kind = 'connection' AND settled = 0;

-- Records of revokes, as the storage agents said. Never deleted.
CREATE TABLE receipts (
    id        INTEGER PRIMARY KEY,
    volume_id TEXT    NOT NULL,
    initiator TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    counter   INTEGER NOT NULL,
    body      BLOB    NOT NULL,
    proven    INTEGER NOT NULL CHECK (proven IN (0, 1))
) STRICT;
CREATE UNIQUE INDEX receipts_by_nexus ON receipts (volume_id, initiator, epoch, counter);
