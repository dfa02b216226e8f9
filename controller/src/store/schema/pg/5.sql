-- PostgreSQL's schema 5: equal in meaning to the embedded database's schema 6 (`../6.sql`). Never edit a schema
-- that was released: add the next file.

-- Storage nodes whose exports were compared with a fence since it began.
CREATE TABLE fence_nodes (
    fence_id TEXT COLLATE "C" NOT NULL REFERENCES fences (id),
    node     TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (fence_id, node)
);

-- Nexuses that go at a storage agent, whether or not an attachment here has them. `taker`: the fence that takes them, or the
-- attachment that is forced away with its host. `receipt`: the newest of the nexus, proven once it is `done`; NULL: there was none.
CREATE TABLE takings (
    taker     TEXT COLLATE "C" NOT NULL,
    agent_id  TEXT COLLATE "C" NOT NULL,
    volume_id TEXT COLLATE "C" NOT NULL,
    initiator TEXT COLLATE "C" NOT NULL,
    done      BIGINT NOT NULL DEFAULT 0 CHECK (done IN (0, 1)),
    receipt   BIGINT,
    fault     TEXT COLLATE "C",
    PRIMARY KEY (taker, agent_id, volume_id, initiator)
);
CREATE INDEX takings_open ON takings (volume_id) WHERE done = 0;
