-- Schema 20. Never edit a schema that was released: add the next file.

-- The agent that states a receipt about a volume which the database does not have there, where access was taken away. Empty: the
-- volume's storage agent.
ALTER TABLE receipts ADD COLUMN other_agent TEXT NOT NULL DEFAULT '';
DROP INDEX IF EXISTS receipts_by_nexus;
CREATE UNIQUE INDEX receipts_by_nexus ON receipts (volume_id, initiator, other_agent, epoch, counter);
