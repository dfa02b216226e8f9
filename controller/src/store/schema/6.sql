-- Schema 6. Never edit a schema that was released: add the next file.

-- Storage nodes whose exports were compared with a fence since it began.
CREATE TABLE fence_nodes (
    fence_id TEXT NOT NULL REFERENCES fences (id),
    node     TEXT NOT NULL,
    PRIMARY KEY (fence_id, node)
) STRICT, WITHOUT ROWID;

-- Nexuses that go at a storage agent, whether or not an attachment here has them. `taker`: the fence that takes them, or the
-- attachment that is forced away with its host. `receipt`: the newest of the nexus, proven once it is `done`; NULL: there was none.
CREATE TABLE takings (
    taker     TEXT    NOT NULL,
    agent_id  TEXT    NOT NULL,
    volume_id TEXT    NOT NULL,
    initiator TEXT    NOT NULL,
    done      INTEGER NOT NULL DEFAULT 0 CHECK (done IN (0, 1)),
    receipt   INTEGER,
    fault     TEXT,
    PRIMARY KEY (taker, agent_id, volume_id, initiator)
) STRICT, WITHOUT ROWID;
CREATE INDEX takings_open ON takings (volume_id) WHERE done = 0;
