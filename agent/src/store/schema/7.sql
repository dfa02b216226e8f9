-- Schema 7: `made`, of a volume's spec: its LV was whole once, so that somebody may have written to it. It stays through every later
-- spec of the volume, and ends with its tombstone. What is remembered as whole for the very wish that is kept was made.

ALTER TABLE specs ADD COLUMN made INTEGER NOT NULL DEFAULT 0 CHECK (made IN (0, 1));

UPDATE specs SET made = 1 WHERE kind = 'volume' AND tombstone = 0 AND EXISTS (
    SELECT 1 FROM whole_lvs
    WHERE whole_lvs.volume_id = specs.volume_id AND whole_lvs.epoch = specs.epoch AND whole_lvs.counter = specs.counter
);
