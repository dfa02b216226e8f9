-- PostgreSQL's schema 10: equal in meaning to the embedded database's schema 11 (`../11.sql`). Never edit a schema
-- that was released: add the next file.

-- The audit log: one row per call that changes something, refused calls included. `seq` is never given twice. `request` is the
-- id that the answer carried: the same line kept twice is one row. `user_name` and `roles` are NULL where nobody was
-- authenticated. `objects`: `kind:id`, one per line.
CREATE TABLE audit (
    seq       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us     BIGINT NOT NULL,
    request   TEXT COLLATE "C" NOT NULL,
    user_name TEXT COLLATE "C",
    project   TEXT COLLATE "C",
    roles     TEXT COLLATE "C",
    peer      TEXT COLLATE "C",
    method    TEXT COLLATE "C" NOT NULL,
    operation TEXT COLLATE "C",
    action    TEXT COLLATE "C",
    objects   TEXT COLLATE "C" NOT NULL,
    status    BIGINT NOT NULL,
    problem   TEXT COLLATE "C"
);
CREATE UNIQUE INDEX audit_by_request ON audit (request);
CREATE INDEX audit_by_time ON audit (at_us);
CREATE INDEX audit_by_user ON audit (user_name, seq);
CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION audit_append_only();

-- The ids of a line's objects, for searches.
CREATE TABLE audit_objects (
    object TEXT COLLATE "C" NOT NULL,
    seq    BIGINT NOT NULL REFERENCES audit (seq) ON DELETE CASCADE,
    PRIMARY KEY (object, seq)
);
CREATE INDEX audit_objects_by_line ON audit_objects (seq);
