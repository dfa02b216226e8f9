-- PostgreSQL's schema 9: equal in meaning to the embedded database's schema 10 (`../10.sql`). Never edit a schema
-- that was released: add the next file.

-- Bytes that a host had not written when an attachment was taken from it by force. NULL: the host has not said.
ALTER TABLE detached ADD COLUMN unwritten_bytes BIGINT;
