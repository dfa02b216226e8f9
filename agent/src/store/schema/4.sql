-- Schema 4: persistent reservations that outlive a loss of power, one row for each volume that has some. The lines are those
-- that put them back (`pr/res_aptpl_metadata`), kept at every change and forgotten with their grants.

CREATE TABLE reservations (
    volume_id TEXT NOT NULL PRIMARY KEY,
    kept      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
