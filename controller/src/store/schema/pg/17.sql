-- PostgreSQL's schema 17: equal in meaning to the embedded database's schema 18 (`../18.sql`). Never edit a schema
-- that was released: add the next file.

-- A line of the audit log is written for each call that changes something: it has as few indexes as its searches need. Time and
-- request identify a line.
DROP INDEX IF EXISTS audit_by_request;
DROP INDEX IF EXISTS audit_by_time;
CREATE UNIQUE INDEX audit_by_time ON audit (at_us, request);

-- A line's own objects are deleted with it.
ALTER TABLE audit_objects DROP CONSTRAINT IF EXISTS audit_objects_seq_fkey;
DROP INDEX IF EXISTS audit_objects_by_line;
