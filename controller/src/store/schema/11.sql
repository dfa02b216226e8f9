-- Schema 11. Never edit a schema that was released: add the next file.

-- The audit log: one row per call that changes something, refused calls included. `seq` is never given twice. `request` is the
-- id that the answer carried: the same line kept twice is one row. `user_name` and `roles` are NULL where nobody was
-- authenticated. `objects`: `kind:id`, one per line.
CREATE TABLE audit (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at_us     INTEGER NOT NULL,
    request   TEXT    NOT NULL,
    user_name TEXT,
    project   TEXT,
    roles     TEXT,
    peer      TEXT,
    method    TEXT    NOT NULL,
    operation TEXT,
    action    TEXT,
    objects   TEXT    NOT NULL,
    status    INTEGER NOT NULL,
    problem   TEXT
) STRICT;
CREATE UNIQUE INDEX audit_by_request ON audit (request);
CREATE INDEX audit_by_time ON audit (at_us);
CREATE INDEX audit_by_user ON audit (user_name, seq);
CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;

-- The ids of a line's objects, for searches.
CREATE TABLE audit_objects (
    object TEXT    NOT NULL,
    seq    INTEGER NOT NULL REFERENCES audit (seq) ON DELETE CASCADE,
    PRIMARY KEY (object, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_objects_by_line ON audit_objects (seq);
