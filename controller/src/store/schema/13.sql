-- Schema 13. Never edit a schema that was released: add the next file.

-- Agents that operators have given up: whoever answers under one of these ids is a stranger. `storage`: it served volumes.
-- `open`: something that it had is left in this database. `by_*`, `forgotten_us`: who wanted that, and when.
CREATE TABLE forgotten (
    agent_id     TEXT    PRIMARY KEY,
    name         TEXT    NOT NULL,
    storage      INTEGER NOT NULL CHECK (storage IN (0, 1)),
    open         INTEGER NOT NULL CHECK (open IN (0, 1)),
    by_user      TEXT    NOT NULL,
    by_request   TEXT    NOT NULL,
    forgotten_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX forgotten_by_name ON forgotten (name, forgotten_us);
