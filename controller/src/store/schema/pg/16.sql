-- PostgreSQL's schema 16: equal in meaning to the embedded database's schema 17 (`../17.sql`). Never edit a schema
-- that was released: add the next file.

-- Attachments that `os-reserve` announced end by themselves, as announced detaches do. `reserved_until_us` identifies the last
-- announcement; NULL: an earlier release made it.
ALTER TABLE volumes ADD COLUMN IF NOT EXISTS reserved_until_us BIGINT;
