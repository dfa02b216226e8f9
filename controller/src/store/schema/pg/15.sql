-- PostgreSQL's schema 15: equal in meaning to the embedded database's schema 16 (`../16.sql`). Never edit a schema
-- that was released: add the next file.

-- An attachment's grant and path are one number, `access`: ten times the grant (0 none, 1 wanted, 2 in force, 3 its host lets go,
-- 4 revoking, 5 revoking by force), and the path (0 never, 1 wanted, 2 left). `moving`: it is being attached, or its grant is on its
-- way. That is a column, and no condition on `access`: a row would be entered into all indexes anew with each grant that is seen.
-- `wish_*`: since which generation of the export the grant is in it, or gone from it. Decision 78 has all rows that are legal.
DROP INDEX attachments_going;
DROP INDEX attachments_in_motion;
DROP INDEX attachments_by_initiator;
ALTER TABLE attachments ADD COLUMN access BIGINT NOT NULL DEFAULT 0, ADD COLUMN moving BIGINT NOT NULL DEFAULT 0;

-- Two kinds of rows that an earlier release left stuck become ones that are being revoked. If the spec still has the grant, the next
-- one is the first without it (`keeps`: `wish_*` becomes zero), or a look at the old spec would end the attachment.
UPDATE attachments a SET access = s.number, moving = s.on_its_way, wish_epoch = a.wish_epoch * s.keeps,
        wish_counter = a.wish_counter * s.keeps
    FROM (
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
    ) AS s WHERE s.id = a.id;

ALTER TABLE attachments ADD CONSTRAINT attachments_standing
    CHECK (' reserved.0.0 attaching.10.1 attaching.20.1 attaching.21.1 attached.0.0 attached.2.0 attached.10.1 attached.11.1 attached.20.0 attached.21.0 attached.40.1 attached.41.1 detaching.32.1 detaching.40.1 detaching.42.1 detaching.50.1 detaching.51.1 detaching.52.1 error_attaching.0.0 error_attaching.2.0 error_attaching.32.1 error_attaching.40.1 error_attaching.42.1 '
        LIKE ('% ' || status || '.' || CAST(access AS TEXT) || '.' || CAST(moving AS TEXT) || ' %')
        AND (initiator IS NOT NULL OR access IN (0, 50)) AND (native IS NOT NULL OR access % 10 = 0))
    NOT VALID;

-- Names a row that the constraint refuses: the server's own message does not.
DO $$
DECLARE
    legal TEXT;
    lost TEXT;
BEGIN
    SELECT pg_get_expr(conbin, conrelid) INTO STRICT legal FROM pg_constraint
        WHERE conname = 'attachments_standing' AND conrelid = 'attachments'::regclass;
    EXECUTE 'SELECT MIN(id) FROM attachments WHERE (' || legal || ') IS NOT TRUE' INTO lost;
    IF lost IS NOT NULL THEN
        RAISE EXCEPTION 'attachment % has a grant and a path that do not go with its status; nothing was changed: start the earlier release again, detach this attachment there by force, then start this release again', lost;
    END IF;
END
$$;
ALTER TABLE attachments VALIDATE CONSTRAINT attachments_standing;

ALTER TABLE attachments DROP COLUMN grant_wanted, DROP COLUMN granted, DROP COLUMN held, DROP COLUMN connect_wanted,
    DROP COLUMN connect_ever, DROP COLUMN forced, ALTER COLUMN access DROP DEFAULT, ALTER COLUMN moving DROP DEFAULT;
CREATE INDEX attachments_by_initiator ON attachments (initiator, host) WHERE initiator IS NOT NULL;
CREATE INDEX attachments_moving ON attachments (volume_id) WHERE moving = 1;
