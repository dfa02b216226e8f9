-- Schema 18. Never edit a schema that was released: add the next file.

-- A line of the audit log is written for each call that changes something: it has as few indexes as its searches need. Time and
-- request identify a line.
DROP INDEX IF EXISTS audit_by_request;
DROP INDEX IF EXISTS audit_by_time;
CREATE UNIQUE INDEX audit_by_time ON audit (at_us, request);

-- A line's own objects are deleted with it.
ALTER TABLE audit_objects RENAME TO audit_objects_17;
CREATE TABLE audit_objects (
    object TEXT    NOT NULL,
    seq    INTEGER NOT NULL,
    PRIMARY KEY (object, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO audit_objects (object, seq) SELECT object, seq FROM audit_objects_17;
DROP TABLE audit_objects_17;
