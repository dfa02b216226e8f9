-- PostgreSQL's schema 8: equal in meaning to the embedded database's schema 9 (`../9.sql`). Never edit a schema
-- that was released: add the next file.

-- The page cache of an attachment's disk on its host. Attachments of before are as they were.
ALTER TABLE attachments ADD COLUMN cache TEXT COLLATE "C" NOT NULL DEFAULT 'on' CHECK (cache IN ('on', 'off'));
