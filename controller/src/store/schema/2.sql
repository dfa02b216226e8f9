-- Schema 2. Never edit a schema that was released: add the next file.

-- `user` is a word of SQL elsewhere.
ALTER TABLE volumes RENAME COLUMN user TO user_id;
ALTER TABLE nexuses RENAME COLUMN user TO chap_user;

-- What users and operators say of a volume beside its name.
ALTER TABLE volumes ADD COLUMN bootable INTEGER NOT NULL DEFAULT 0 CHECK (bootable IN (0, 1));
-- The readonly flag; NULL: never said.
ALTER TABLE volumes ADD COLUMN readonly INTEGER CHECK (readonly IN (0, 1));
ALTER TABLE volumes ADD COLUMN zone TEXT NOT NULL DEFAULT 'nova';
-- `os-reserve`: attachments to come that have no row yet; they derive as `attaching`.
ALTER TABLE volumes ADD COLUMN reserved INTEGER NOT NULL DEFAULT 0 CHECK (reserved >= 0);
-- `os-begin_detaching`: detaches to come, until then at most.
ALTER TABLE volumes ADD COLUMN holds INTEGER NOT NULL DEFAULT 0 CHECK (holds >= 0);
ALTER TABLE volumes ADD COLUMN holds_until_us INTEGER;
-- `os-reset_status`: what an operator says it is, until the next event.
ALTER TABLE volumes ADD COLUMN said_status TEXT;
-- Placement: the hints of its creator, and the pools that were tried, with why not (JSON).
ALTER TABLE volumes ADD COLUMN hints TEXT NOT NULL DEFAULT '{}';
ALTER TABLE volumes ADD COLUMN tried TEXT NOT NULL DEFAULT '[]';

CREATE INDEX volumes_by_age ON volumes (created_us, id);
CREATE INDEX volumes_by_name ON volumes (name, created_us);
CREATE INDEX attachments_by_age ON attachments (created_us, id);
CREATE INDEX attachments_by_project ON attachments (project, created_us, id);
CREATE INDEX attachments_by_instance ON attachments (instance) WHERE instance IS NOT NULL;
CREATE INDEX volumes_in_operation ON volumes (operation) WHERE operation IS NOT NULL;
CREATE INDEX attachments_in_motion ON attachments (volume_id) WHERE status NOT IN ('attached', 'reserved');

-- What operators say of an agent, and when it was heard last.
ALTER TABLE agents ADD COLUMN disabled INTEGER NOT NULL DEFAULT 0 CHECK (disabled IN (0, 1));
ALTER TABLE agents ADD COLUMN disabled_reason TEXT;
ALTER TABLE agents ADD COLUMN drained INTEGER NOT NULL DEFAULT 0 CHECK (drained IN (0, 1));
ALTER TABLE agents ADD COLUMN heard_us INTEGER;

-- Projects that may use a private type.
CREATE TABLE type_projects (
    type_id TEXT NOT NULL REFERENCES volume_types (id) ON DELETE CASCADE,
    project TEXT NOT NULL,
    PRIMARY KEY (type_id, project)
) STRICT, WITHOUT ROWID;

-- Limits that differ from the defaults: of a project, or (project '') of the default class. -1: none.
CREATE TABLE quotas (
    project TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    value   INTEGER NOT NULL CHECK (value >= -1),
    PRIMARY KEY (project, key)
) STRICT, WITHOUT ROWID;

-- Why something that was accepted did not come true, for those who asked for it.
CREATE TABLE messages (
    id            TEXT    PRIMARY KEY,
    project       TEXT    NOT NULL,
    request       TEXT    NOT NULL,
    resource_kind TEXT    NOT NULL,
    resource_id   TEXT,
    event         TEXT    NOT NULL,
    level         TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    created_us    INTEGER NOT NULL,
    expires_us    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX messages_by_project ON messages (project, created_us);
CREATE INDEX messages_by_expiry ON messages (expires_us);

-- What is asked for at every start and by `GET /mooring/v1/hosts`, among very many that are in none.
CREATE INDEX volumes_in_review ON volumes (agent_id) WHERE review IS NOT NULL;

-- Attachments: `mode_asked`: its mode was said when it was made, and a connector does not change it; `legacy`:
-- `os-initialize_connection` made it, and `os-attach` says whose it is; `asked_*`: who wants it gone, and since when.
ALTER TABLE attachments ADD COLUMN mode_asked INTEGER NOT NULL DEFAULT 0 CHECK (mode_asked IN (0, 1));
ALTER TABLE attachments ADD COLUMN legacy INTEGER NOT NULL DEFAULT 0 CHECK (legacy IN (0, 1));
ALTER TABLE attachments ADD COLUMN asked_user TEXT;
ALTER TABLE attachments ADD COLUMN asked_request TEXT;
ALTER TABLE attachments ADD COLUMN asked_us INTEGER;
CREATE INDEX attachments_going ON attachments (volume_id) WHERE held = 1 AND grant_wanted = 0;

-- The record of every detach: what it was, and who asked for its end.
ALTER TABLE detached ADD COLUMN instance TEXT;
ALTER TABLE detached ADD COLUMN host TEXT;
ALTER TABLE detached ADD COLUMN mode TEXT;
ALTER TABLE detached ADD COLUMN forced INTEGER NOT NULL DEFAULT 0 CHECK (forced IN (0, 1));
ALTER TABLE detached ADD COLUMN asked_user TEXT;
ALTER TABLE detached ADD COLUMN asked_request TEXT;
ALTER TABLE detached ADD COLUMN asked_us INTEGER;
CREATE INDEX detached_by_age ON detached (detached_us, id);
CREATE INDEX detached_by_volume ON detached (volume_id, detached_us, id);
CREATE INDEX detached_by_project ON detached (project, detached_us, id);
CREATE INDEX volumes_held ON volumes (id) WHERE holds > 0;

-- Placement. `software`: what an agent says at hello. `taken_us`: when a volume was first seen at its agent, so that reports
-- asked for later show its space; NULL: none does (of the volumes of schema 1 that are being made, nobody knows).
-- `sent`: its wish may have reached its agent; 0: it certainly has not.
ALTER TABLE agents ADD COLUMN software TEXT NOT NULL DEFAULT '';
ALTER TABLE volumes ADD COLUMN taken_us INTEGER;
ALTER TABLE volumes ADD COLUMN sent INTEGER NOT NULL DEFAULT 1 CHECK (sent IN (0, 1));
CREATE INDEX volumes_by_taking ON volumes (agent_id, taken_us) WHERE taken_us IS NOT NULL;
CREATE INDEX volumes_by_place ON volumes (agent_id, pool, size_gib);

-- Quotas are counted from this index alone: one project's volumes, type by type.
CREATE INDEX volumes_by_quota ON volumes (project, type_id, size_gib);

-- The types of those projects' volumes that name none.
CREATE TABLE default_types (
    project TEXT PRIMARY KEY,
    type_id TEXT NOT NULL REFERENCES volume_types (id)
) STRICT, WITHOUT ROWID;
CREATE INDEX default_types_by_type ON default_types (type_id);
