-- PostgreSQL's schema 3: equal in meaning to the embedded database's schema 4 (`../4.sql`). Never edit a schema
-- that was released: add the next file.

-- Fibre Channel: under which number an attachment's host sees the volume, and the ports that show it (port names, blanks between).
ALTER TABLE attachments ADD COLUMN fc_lun BIGINT CHECK (fc_lun BETWEEN 1 AND 255);
ALTER TABLE volumes ADD COLUMN fc_ports TEXT COLLATE "C" NOT NULL DEFAULT '';

-- The number of an initiator port on a storage agent: given once, and never to another one.
CREATE TABLE fc_slots (
    agent_id TEXT COLLATE "C" NOT NULL,
    wwpn     TEXT COLLATE "C" NOT NULL,
    slot     BIGINT NOT NULL CHECK (slot BETWEEN 1 AND 65535),
    PRIMARY KEY (agent_id, wwpn)
);
CREATE UNIQUE INDEX fc_slots_by_number ON fc_slots (agent_id, slot);

-- LUN numbers of an initiator port on a storage agent. `volume_id`: whose number it is, as long as anybody may know it as such;
-- NULL: nobody's any more, since `freed_us`.
CREATE TABLE fc_luns (
    agent_id  TEXT COLLATE "C" NOT NULL,
    wwpn      TEXT COLLATE "C" NOT NULL,
    lun       BIGINT NOT NULL CHECK (lun BETWEEN 1 AND 255),
    volume_id TEXT COLLATE "C",
    freed_us  BIGINT,
    PRIMARY KEY (agent_id, wwpn, lun)
);
CREATE UNIQUE INDEX fc_luns_by_nexus ON fc_luns (volume_id, wwpn) WHERE volume_id IS NOT NULL;
