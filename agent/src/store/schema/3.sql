-- Schema 3: where volumes were ever granted over Fibre Channel: nothing in a port tells which LUNs are one volume's. A place
-- goes when a later spec was seen in force. The ports that ever served are in `meta`, as `fc_ports`.

CREATE TABLE fc_places (
    volume_id TEXT    NOT NULL,
    slot      INTEGER NOT NULL,
    lun       INTEGER NOT NULL,
    initiator TEXT    NOT NULL,
    PRIMARY KEY (volume_id, slot, lun, initiator)
) STRICT, WITHOUT ROWID;
