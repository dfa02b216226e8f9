-- Schema 4. Never edit a schema that was released: add the next file.

-- Fibre Channel: under which number an attachment's host sees the volume, and the ports that show it (port names, blanks between).
ALTER TABLE attachments ADD COLUMN fc_lun INTEGER CHECK (fc_lun BETWEEN 1 AND 255);
ALTER TABLE volumes ADD COLUMN fc_ports TEXT NOT NULL DEFAULT '';

-- The number of an initiator port on a storage agent: given once, and never to another one.
CREATE TABLE fc_slots (
    agent_id TEXT    NOT NULL,
    wwpn     TEXT    NOT NULL,
    slot     INTEGER NOT NULL CHECK (slot BETWEEN 1 AND 65535),
    PRIMARY KEY (agent_id, wwpn)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX fc_slots_by_number ON fc_slots (agent_id, slot);

-- LUN numbers of an initiator port on a storage agent. `volume_id`: whose number it is, as long as anybody may know it as such;
-- NULL: nobody's any more, since `freed_us`.
CREATE TABLE fc_luns (
    agent_id  TEXT    NOT NULL,
    wwpn      TEXT    NOT NULL,
    lun       INTEGER NOT NULL CHECK (lun BETWEEN 1 AND 255),
    volume_id TEXT,
    freed_us  INTEGER,
    PRIMARY KEY (agent_id, wwpn, lun)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX fc_luns_by_nexus ON fc_luns (volume_id, wwpn) WHERE volume_id IS NOT NULL;
