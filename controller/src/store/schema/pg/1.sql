-- PostgreSQL's schema 1: equal in meaning to the embedded database's schema 2 (`../1.sql` and `../2.sql` explain the columns),
-- with the tables that only several controllers need at its end. A test compares the two. Never edit a schema that was
-- released: add the next file. Texts compare by their bytes, as there.

CREATE TABLE meta (
    key   TEXT COLLATE "C" PRIMARY KEY,
    value TEXT COLLATE "C" NOT NULL
);

CREATE TABLE volume_types (
    id          TEXT COLLATE "C" PRIMARY KEY,
    name        TEXT COLLATE "C" NOT NULL,
    description TEXT COLLATE "C",
    is_public   BIGINT NOT NULL CHECK (is_public IN (0, 1)),
    created_us  BIGINT NOT NULL
);
CREATE UNIQUE INDEX volume_types_by_name ON volume_types (name);

CREATE TABLE extra_specs (
    type_id TEXT COLLATE "C" NOT NULL REFERENCES volume_types (id) ON DELETE CASCADE,
    key     TEXT COLLATE "C" NOT NULL,
    value   TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (type_id, key)
);

CREATE TABLE agents (
    name            TEXT COLLATE "C" PRIMARY KEY,
    agent_id        TEXT COLLATE "C" NOT NULL,
    initiator       TEXT COLLATE "C",
    portals         TEXT COLLATE "C" NOT NULL,
    capabilities    BYTEA,
    hello_us        BIGINT NOT NULL,
    report_us       BIGINT,
    disabled        BIGINT NOT NULL DEFAULT 0 CHECK (disabled IN (0, 1)),
    disabled_reason TEXT COLLATE "C",
    drained         BIGINT NOT NULL DEFAULT 0 CHECK (drained IN (0, 1)),
    heard_us        BIGINT,
    software        TEXT COLLATE "C" NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX agents_by_id ON agents (agent_id);
CREATE UNIQUE INDEX agents_by_initiator ON agents (initiator) WHERE initiator IS NOT NULL;

CREATE TABLE volumes (
    id             TEXT COLLATE "C" PRIMARY KEY,
    name           TEXT COLLATE "C",
    description    TEXT COLLATE "C",
    size_gib       BIGINT NOT NULL CHECK (size_gib > 0),
    type_id        TEXT COLLATE "C" NOT NULL REFERENCES volume_types (id),
    multiattach    BIGINT NOT NULL CHECK (multiattach IN (0, 1)),
    operation      TEXT COLLATE "C",
    status         TEXT COLLATE "C" NOT NULL,
    attach_status  TEXT COLLATE "C" NOT NULL,
    project        TEXT COLLATE "C" NOT NULL,
    user_id        TEXT COLLATE "C" NOT NULL,
    metadata       TEXT COLLATE "C" NOT NULL,
    agent_id       TEXT COLLATE "C" NOT NULL,
    pool           TEXT COLLATE "C" NOT NULL,
    target         TEXT COLLATE "C",
    naa            TEXT COLLATE "C",
    portals        TEXT COLLATE "C" NOT NULL DEFAULT '',
    review         TEXT COLLATE "C",
    created_us     BIGINT NOT NULL,
    updated_us     BIGINT,
    fault          TEXT COLLATE "C",
    bootable       BIGINT NOT NULL DEFAULT 0 CHECK (bootable IN (0, 1)),
    readonly       BIGINT CHECK (readonly IN (0, 1)),
    zone           TEXT COLLATE "C" NOT NULL DEFAULT 'nova',
    reserved       BIGINT NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    holds          BIGINT NOT NULL DEFAULT 0 CHECK (holds >= 0),
    holds_until_us BIGINT,
    said_status    TEXT COLLATE "C",
    hints          TEXT COLLATE "C" NOT NULL DEFAULT '{}',
    tried          TEXT COLLATE "C" NOT NULL DEFAULT '[]',
    taken_us       BIGINT,
    sent           BIGINT NOT NULL DEFAULT 1 CHECK (sent IN (0, 1))
);
CREATE INDEX volumes_by_project ON volumes (project, created_us);
CREATE INDEX volumes_by_agent ON volumes (agent_id);
CREATE INDEX volumes_by_type ON volumes (type_id);
CREATE INDEX volumes_by_age ON volumes (created_us, id);
CREATE INDEX volumes_by_name ON volumes (name, created_us);
CREATE INDEX volumes_in_operation ON volumes (operation) WHERE operation IS NOT NULL;
CREATE INDEX volumes_by_taking ON volumes (agent_id, taken_us) WHERE taken_us IS NOT NULL;
CREATE INDEX volumes_by_place ON volumes (agent_id, pool, size_gib);
CREATE INDEX volumes_by_quota ON volumes (project, type_id, size_gib);
CREATE INDEX volumes_held ON volumes (id) WHERE holds > 0;
CREATE INDEX volumes_in_review ON volumes (agent_id) WHERE review IS NOT NULL;

CREATE TABLE attachments (
    id             TEXT COLLATE "C" PRIMARY KEY,
    volume_id      TEXT COLLATE "C" NOT NULL REFERENCES volumes (id),
    project        TEXT COLLATE "C" NOT NULL,
    instance       TEXT COLLATE "C",
    mode           TEXT COLLATE "C" NOT NULL CHECK (mode IN ('rw', 'ro')),
    status         TEXT COLLATE "C" NOT NULL,
    connector      TEXT COLLATE "C",
    initiator      TEXT COLLATE "C",
    host           TEXT COLLATE "C",
    mountpoint     TEXT COLLATE "C",
    native         TEXT COLLATE "C",
    grant_wanted   BIGINT NOT NULL CHECK (grant_wanted IN (0, 1)),
    granted        BIGINT NOT NULL CHECK (granted IN (0, 1)),
    held           BIGINT NOT NULL CHECK (held IN (0, 1)),
    connect_wanted BIGINT NOT NULL CHECK (connect_wanted IN (0, 1)),
    connect_ever   BIGINT NOT NULL CHECK (connect_ever IN (0, 1)),
    forced         BIGINT NOT NULL CHECK (forced IN (0, 1)),
    wish_epoch     BIGINT NOT NULL,
    wish_counter   BIGINT NOT NULL,
    steps          TEXT COLLATE "C" NOT NULL DEFAULT '[]',
    created_us     BIGINT NOT NULL,
    attached_us    BIGINT,
    fault          TEXT COLLATE "C",
    mode_asked     BIGINT NOT NULL DEFAULT 0 CHECK (mode_asked IN (0, 1)),
    legacy         BIGINT NOT NULL DEFAULT 0 CHECK (legacy IN (0, 1)),
    asked_user     TEXT COLLATE "C",
    asked_request  TEXT COLLATE "C",
    asked_us       BIGINT,
    CHECK (grant_wanted = 0 OR initiator IS NOT NULL),
    CHECK (connect_wanted = 0 OR native IS NOT NULL)
);
CREATE INDEX attachments_by_volume ON attachments (volume_id, created_us);
CREATE INDEX attachments_by_native ON attachments (native) WHERE native IS NOT NULL;
CREATE UNIQUE INDEX attachments_by_place ON attachments (volume_id, instance, host)
    WHERE instance IS NOT NULL AND host IS NOT NULL;
CREATE INDEX attachments_going ON attachments (volume_id) WHERE held = 1 AND grant_wanted = 0;
CREATE INDEX attachments_by_age ON attachments (created_us, id);
CREATE INDEX attachments_by_project ON attachments (project, created_us, id);
CREATE INDEX attachments_by_instance ON attachments (instance) WHERE instance IS NOT NULL;
CREATE INDEX attachments_in_motion ON attachments (volume_id) WHERE status NOT IN ('attached', 'reserved');

CREATE TABLE detached (
    id          TEXT COLLATE "C" PRIMARY KEY,
    volume_id   TEXT COLLATE "C" NOT NULL,
    project     TEXT COLLATE "C" NOT NULL,
    initiator   TEXT COLLATE "C",
    receipt     BIGINT,
    detached_us BIGINT NOT NULL,
    instance      TEXT COLLATE "C",
    host          TEXT COLLATE "C",
    mode          TEXT COLLATE "C",
    forced        BIGINT NOT NULL DEFAULT 0 CHECK (forced IN (0, 1)),
    asked_user    TEXT COLLATE "C",
    asked_request TEXT COLLATE "C",
    asked_us      BIGINT
);
CREATE INDEX detached_by_age ON detached (detached_us, id);
CREATE INDEX detached_by_volume ON detached (volume_id, detached_us, id);
CREATE INDEX detached_by_project ON detached (project, detached_us, id);

CREATE TABLE nexuses (
    volume_id     TEXT COLLATE "C" NOT NULL,
    initiator     TEXT COLLATE "C" NOT NULL,
    chap_user     TEXT COLLATE "C" NOT NULL,
    secret        TEXT COLLATE "C" NOT NULL,
    mutual_user   TEXT COLLATE "C",
    mutual_secret TEXT COLLATE "C",
    PRIMARY KEY (volume_id, initiator)
);

CREATE TABLE specs (
    volume_id TEXT COLLATE "C" NOT NULL,
    kind      TEXT COLLATE "C" NOT NULL CHECK (kind IN ('volume', 'export', 'connection')),
    agent_id  TEXT COLLATE "C" NOT NULL,
    epoch     BIGINT NOT NULL,
    counter   BIGINT NOT NULL,
    digest    BYTEA NOT NULL,
    body      BYTEA,
    opaque    BYTEA NOT NULL,
    hard      BIGINT NOT NULL CHECK (hard IN (0, 1)),
    settled   BIGINT NOT NULL CHECK (settled IN (0, 1)),
    PRIMARY KEY (volume_id, kind, agent_id)
);
CREATE INDEX specs_unsettled ON specs (agent_id) WHERE kind = 'connection' AND settled = 0;

CREATE TABLE receipts (
    id        BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    volume_id TEXT COLLATE "C" NOT NULL,
    initiator TEXT COLLATE "C" NOT NULL,
    epoch     BIGINT NOT NULL,
    counter   BIGINT NOT NULL,
    body      BYTEA NOT NULL,
    proven    BIGINT NOT NULL CHECK (proven IN (0, 1))
);
CREATE UNIQUE INDEX receipts_by_nexus ON receipts (volume_id, initiator, epoch, counter);

CREATE TABLE type_projects (
    type_id TEXT COLLATE "C" NOT NULL REFERENCES volume_types (id) ON DELETE CASCADE,
    project TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (type_id, project)
);

CREATE TABLE default_types (
    project TEXT COLLATE "C" PRIMARY KEY,
    type_id TEXT COLLATE "C" NOT NULL REFERENCES volume_types (id)
);
CREATE INDEX default_types_by_type ON default_types (type_id);

CREATE TABLE quotas (
    project TEXT COLLATE "C" NOT NULL,
    key     TEXT COLLATE "C" NOT NULL,
    value   BIGINT NOT NULL CHECK (value >= -1),
    PRIMARY KEY (project, key)
);

CREATE TABLE messages (
    id            TEXT COLLATE "C" PRIMARY KEY,
    project       TEXT COLLATE "C" NOT NULL,
    request       TEXT COLLATE "C" NOT NULL,
    resource_kind TEXT COLLATE "C" NOT NULL,
    resource_id   TEXT COLLATE "C",
    event         TEXT COLLATE "C" NOT NULL,
    level         TEXT COLLATE "C" NOT NULL,
    text          TEXT COLLATE "C" NOT NULL,
    created_us    BIGINT NOT NULL,
    expires_us    BIGINT NOT NULL
);
CREATE INDEX messages_by_project ON messages (project, created_us);
CREATE INDEX messages_by_expiry ON messages (expires_us);

-- Controllers that are alive, one row per start. `until_us` is the database's time: who lets it pass may be taken away by
-- any other, with its leases. `enrols`: the agents of its configuration, one name per line.
CREATE TABLE controllers (
    id         TEXT COLLATE "C" PRIMARY KEY,
    enrols     TEXT COLLATE "C" NOT NULL,
    started_us BIGINT NOT NULL,
    until_us   BIGINT NOT NULL
) WITH (fillfactor = 50);

-- Which controller drives an agent: dials it, follows its reports, sends it what is wished. `said`: how the agent is, in the
-- holder's words (JSON).
CREATE TABLE leases (
    agent    TEXT COLLATE "C" PRIMARY KEY,
    holder   TEXT COLLATE "C",
    said     TEXT COLLATE "C" NOT NULL DEFAULT '{}',
    since_us BIGINT NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX leases_by_holder ON leases (holder);

-- The last change of each connection that writes: proof that it was committed, when the connection breaks at the commit.
CREATE TABLE commit_marks (
    slot      TEXT COLLATE "C" PRIMARY KEY,
    mark      TEXT COLLATE "C" NOT NULL,
    marked_at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);
