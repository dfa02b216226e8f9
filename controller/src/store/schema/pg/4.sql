-- PostgreSQL's schema 4: equal in meaning to the embedded database's schema 5 (`../5.sql`). Never edit a schema
-- that was released: add the next file.

-- A snapshot is kept as a volume is: it has its place, its wish and its review. `snapshot_of`: its volume; NULL: it is a volume
-- itself. `source_volume`, `source_snapshot`: what a volume was made from.
ALTER TABLE volumes ADD COLUMN snapshot_of TEXT COLLATE "C";
ALTER TABLE volumes ADD COLUMN source_volume TEXT COLLATE "C";
ALTER TABLE volumes ADD COLUMN source_snapshot TEXT COLLATE "C";
CREATE INDEX volumes_by_origin ON volumes (snapshot_of, created_us) WHERE snapshot_of IS NOT NULL;

-- Snapshots count for themselves.
DROP INDEX volumes_by_quota;
CREATE INDEX volumes_by_quota ON volumes (project, type_id, snapshot_of, size_gib);
