-- Schema 8: `sum`, of each row: a checksum of its table's name and of all of its other columns, in the order of store/sum.rs. The rows
-- that are there are summed here: what they say was believed until now, and nobody can say more of them. From now on a row without a
-- sum is damaged. `row_sum` is a function of the agent's own connections.

ALTER TABLE meta ADD COLUMN sum INTEGER;
ALTER TABLE specs ADD COLUMN sum INTEGER;
ALTER TABLE receipts ADD COLUMN sum INTEGER;
ALTER TABLE fc_places ADD COLUMN sum INTEGER;
ALTER TABLE reservations ADD COLUMN sum INTEGER;
ALTER TABLE whole_lvs ADD COLUMN sum INTEGER;

UPDATE meta SET sum = row_sum('meta', key, value);
UPDATE specs SET sum = row_sum('specs', volume_id, kind, epoch, counter, digest, body, opaque, tombstone, destroy, revoked,
    updated_us, released, made);
UPDATE receipts SET sum = row_sum('receipts', id, volume_id, initiator, epoch, counter, body, proven, began_us);
UPDATE fc_places SET sum = row_sum('fc_places', volume_id, slot, lun, initiator);
UPDATE reservations SET sum = row_sum('reservations', volume_id, kept);
UPDATE whole_lvs SET sum = row_sum('whole_lvs', volume_id, epoch, counter, mapping, size, reverted);
