-- Schema 16. Never edit a schema that was released: add the next file.

-- An attachment's grant and path are one number, `access`: ten times the grant (0 none, 1 wanted, 2 in force, 3 its host lets go,
-- 4 revoking, 5 revoking by force), and the path (0 never, 1 wanted, 2 left). `moving`: it is being attached, or its grant is on its
-- way. That is a column, and no condition on `access`: PostgreSQL would enter a row into all indexes anew with each grant that is seen.
-- `wish_*`: since which generation of the export the grant is in it, or gone from it. Decision 78 has all rows that are legal.
CREATE TABLE attachments_new (
    id             TEXT PRIMARY KEY,
    volume_id      TEXT NOT NULL REFERENCES volumes (id),
    project        TEXT NOT NULL,
    instance       TEXT,
    mode           TEXT NOT NULL CHECK (mode IN ('rw', 'ro')),
    status         TEXT NOT NULL,
    connector      TEXT,
    initiator      TEXT,
    host           TEXT,
    mountpoint     TEXT,
    native         TEXT,
    access         INTEGER NOT NULL,
    moving         INTEGER NOT NULL,
    wish_epoch     INTEGER NOT NULL,
    wish_counter   INTEGER NOT NULL,
    steps          TEXT NOT NULL DEFAULT '[]',
    created_us     INTEGER NOT NULL,
    attached_us    INTEGER,
    fault          TEXT,
    mode_asked     INTEGER NOT NULL DEFAULT 0 CHECK (mode_asked IN (0, 1)),
    legacy         INTEGER NOT NULL DEFAULT 0 CHECK (legacy IN (0, 1)),
    asked_user     TEXT,
    asked_request  TEXT,
    asked_us       INTEGER,
    fc_lun         INTEGER CHECK (fc_lun BETWEEN 1 AND 255),
    claimed        INTEGER NOT NULL DEFAULT 0 CHECK (claimed IN (0, 1)),
    cache          TEXT NOT NULL DEFAULT 'on' CHECK (cache IN ('on', 'off')),
    CONSTRAINT attachments_standing
    CHECK (' reserved.0.0 attaching.10.1 attaching.20.1 attaching.21.1 attached.0.0 attached.2.0 attached.10.1 attached.11.1 attached.20.0 attached.21.0 attached.40.1 attached.41.1 detaching.32.1 detaching.40.1 detaching.42.1 detaching.50.1 detaching.51.1 detaching.52.1 error_attaching.0.0 error_attaching.2.0 error_attaching.32.1 error_attaching.40.1 error_attaching.42.1 '
        LIKE ('% ' || status || '.' || CAST(access AS TEXT) || '.' || CAST(moving AS TEXT) || ' %')
        AND (initiator IS NOT NULL OR access IN (0, 50)) AND (native IS NOT NULL OR access % 10 = 0))
) STRICT, WITHOUT ROWID;

-- Two kinds of rows that an earlier release left stuck become ones that are being revoked. If the spec still has the grant, the next
-- one is the first without it (`keeps`: `wish_*` becomes zero), or a look at the old spec would end the attachment.
INSERT OR IGNORE INTO attachments_new (id, volume_id, project, instance, mode, status, connector, initiator, host, mountpoint, native,
        access, moving, wish_epoch, wish_counter, steps, created_us, attached_us, fault, mode_asked, legacy, asked_user, asked_request,
        asked_us, fc_lun, claimed, cache)
    SELECT a.id, a.volume_id, a.project, a.instance, a.mode, a.status, a.connector, a.initiator, a.host, a.mountpoint, a.native,
        s.number, s.on_its_way, a.wish_epoch * s.keeps, a.wish_counter * s.keeps, a.steps, a.created_us, a.attached_us, a.fault,
        a.mode_asked, a.legacy, a.asked_user, a.asked_request, a.asked_us, a.fc_lun, a.claimed, a.cache
    FROM attachments a JOIN (
        SELECT id, 10 * grant_no + CASE WHEN grant_no IN (0, 3) AND path_no = 1 THEN 2 ELSE path_no END AS number,
            CASE WHEN status = 'attaching' OR grant_no IN (1, 3, 4, 5) THEN 1 ELSE 0 END AS on_its_way,
            CASE WHEN grant_wanted = 1 AND grant_no >= 4 THEN 0 ELSE 1 END AS keeps
        FROM (
            SELECT id, status, grant_wanted,
                CASE WHEN forced = 1 THEN 5
                    WHEN grant_wanted = 1 AND status IN ('detaching', 'error_attaching')
                        THEN CASE WHEN native IS NOT NULL AND connect_ever = 1 THEN 3 ELSE 4 END
                    WHEN grant_wanted = 1 THEN 1 + granted
                    WHEN held = 1 THEN 4 ELSE 0 END AS grant_no,
                CASE WHEN native IS NULL THEN 0 WHEN connect_wanted = 1 THEN 1 WHEN connect_ever = 1 THEN 2 ELSE 0 END AS path_no
            FROM attachments
        ) AS six
    ) AS s ON s.id = a.id;

-- A row leaves the old table only if it is in the new one.
CREATE TRIGGER attachments_lost BEFORE DELETE ON attachments
    WHEN NOT EXISTS (SELECT 1 FROM attachments_new n WHERE n.id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'attachment ' || OLD.id || ' has a grant and a path that do not go with its status; nothing was changed: start the earlier release again, detach this attachment there by force, then start this release again');
END;
DELETE FROM attachments;
DROP TABLE attachments;
ALTER TABLE attachments_new RENAME TO attachments;

CREATE INDEX attachments_by_volume ON attachments (volume_id, created_us);
CREATE INDEX attachments_by_native ON attachments (native) WHERE native IS NOT NULL;
CREATE UNIQUE INDEX attachments_by_place ON attachments (volume_id, instance, host)
    WHERE instance IS NOT NULL AND host IS NOT NULL;
CREATE INDEX attachments_by_age ON attachments (created_us, id);
CREATE INDEX attachments_by_project ON attachments (project, created_us, id);
CREATE INDEX attachments_by_instance ON attachments (instance) WHERE instance IS NOT NULL;
CREATE INDEX attachments_by_initiator ON attachments (initiator, host) WHERE initiator IS NOT NULL;
CREATE INDEX attachments_moving ON attachments (volume_id) WHERE moving = 1;
