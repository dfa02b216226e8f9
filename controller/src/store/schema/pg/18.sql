-- PostgreSQL's schema 18: equal in meaning to the embedded database's schema 19 (`../19.sql`). Never edit a schema
-- that was released: add the next file.

-- The ids of a line's objects, by blocks of 1024 lines (`seq / 1024`): new rows are near to each other whatever their ids are, and so
-- change few pages. A search looks into each block.
ALTER TABLE audit_objects ADD COLUMN IF NOT EXISTS block BIGINT;
UPDATE audit_objects SET block = seq / 1024;
ALTER TABLE audit_objects ALTER COLUMN block SET NOT NULL;
ALTER TABLE audit_objects DROP CONSTRAINT audit_objects_pkey;
ALTER TABLE audit_objects ADD PRIMARY KEY (block, object, seq);
