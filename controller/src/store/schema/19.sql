-- Schema 19. Never edit a schema that was released: add the next file.

-- The ids of a line's objects, by blocks of 1024 lines (`seq / 1024`): new rows are near to each other whatever their ids are, and so
-- change few pages. A search looks into each block.
ALTER TABLE audit_objects RENAME TO audit_objects_18;
CREATE TABLE audit_objects (
    block  INTEGER NOT NULL,
    object TEXT    NOT NULL,
    seq    INTEGER NOT NULL,
    PRIMARY KEY (block, object, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO audit_objects (block, object, seq) SELECT seq / 1024, object, seq FROM audit_objects_18 ORDER BY 1, 2, 3;
DROP TABLE audit_objects_18;
