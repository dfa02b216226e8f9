-- PostgreSQL's schema 13: equal in meaning to the embedded database's schema 14 (`../14.sql`). Never edit a schema
-- that was released: add the next file.

-- Secrets of a nexus that are being rotated. `rotation` says what is waited for: 'offered', that its host knows the other secrets
-- beside its own, which come; 'switched', that its target has the secrets, and the others go; 'settling' is as 'switched', after a
-- rebuild that does not know which of the two came. The others are sealed as the secrets are. `rotated_us`: when the last rotation ended.
ALTER TABLE nexuses ADD COLUMN rotation TEXT COLLATE "C" CHECK (rotation IN ('offered', 'switched', 'settling'));
ALTER TABLE nexuses ADD COLUMN other_secret TEXT COLLATE "C";
ALTER TABLE nexuses ADD COLUMN other_mutual TEXT COLLATE "C";
ALTER TABLE nexuses ADD COLUMN rotated_us BIGINT;
