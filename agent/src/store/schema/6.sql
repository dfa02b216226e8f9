-- Schema 6: LVs as LVM showed them when they were whole, so that a start need not wait for it: what device-mapper calls the LV's
-- device, its size in bytes, and the revert that made it. A row says something of one generation of its volume's wish, and of no
-- other: what is wished next makes it void.

CREATE TABLE whole_lvs (
    volume_id TEXT    NOT NULL PRIMARY KEY,
    epoch     INTEGER NOT NULL,
    counter   INTEGER NOT NULL,
    mapping   TEXT    NOT NULL,
    size      INTEGER NOT NULL,
    reverted  TEXT
) STRICT, WITHOUT ROWID;
