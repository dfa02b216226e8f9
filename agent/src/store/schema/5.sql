-- Schema 5: `released`, of a volume's tombstone: the LV stays with its data, and is nobody's.

ALTER TABLE specs ADD COLUMN released INTEGER NOT NULL DEFAULT 0 CHECK (released IN (0, 1));
