-- Schema 9: the relative target port ids of exports, on kernels that have `rtpi`: the id with which an export was seen enabled last.
-- It stays as long as the volume does.

CREATE TABLE port_ids (
    volume_id TEXT    NOT NULL PRIMARY KEY,
    port_id   INTEGER NOT NULL UNIQUE CHECK (port_id BETWEEN 1 AND 65535),
    sum       INTEGER
) STRICT;
