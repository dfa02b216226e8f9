-- PostgreSQL's schema 19: equal in meaning to the embedded database's schema 20 (`../20.sql`). Never edit a schema
-- that was released: add the next file.

-- The agent that states a receipt about a volume which the database does not have there, where access was taken away. Empty: the
-- volume's storage agent.
ALTER TABLE receipts ADD COLUMN IF NOT EXISTS other_agent TEXT COLLATE "C" NOT NULL DEFAULT '';
DROP INDEX IF EXISTS receipts_by_nexus;
CREATE UNIQUE INDEX receipts_by_nexus ON receipts (volume_id, initiator, other_agent, epoch, counter);
