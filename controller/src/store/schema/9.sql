-- Schema 9. Never edit a schema that was released: add the next file.

-- The page cache of an attachment's disk on its host. Attachments of before are as they were.
ALTER TABLE attachments ADD COLUMN cache TEXT NOT NULL DEFAULT 'on' CHECK (cache IN ('on', 'off'));
