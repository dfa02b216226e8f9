-- PostgreSQL's schema 12: equal in meaning to the embedded database's schema 13 (`../13.sql`). Never edit a schema
-- that was released: add the next file.

-- Agents that operators have given up: whoever answers under one of these ids is a stranger. `storage`: it served volumes.
-- `open`: something that it had is left in this database. `by_*`, `forgotten_us`: who wanted that, and when.
CREATE TABLE forgotten (
    agent_id     TEXT COLLATE "C" PRIMARY KEY,
    name         TEXT COLLATE "C" NOT NULL,
    storage      BIGINT NOT NULL CHECK (storage IN (0, 1)),
    open         BIGINT NOT NULL CHECK (open IN (0, 1)),
    by_user      TEXT COLLATE "C" NOT NULL,
    by_request   TEXT COLLATE "C" NOT NULL,
    forgotten_us BIGINT NOT NULL
);
CREATE INDEX forgotten_by_name ON forgotten (name, forgotten_us);
