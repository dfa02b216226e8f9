-- Schema 10. Never edit a schema that was released: add the next file.

-- Bytes that a host had not written when an attachment was taken from it by force. NULL: the host has not said.
ALTER TABLE detached ADD COLUMN unwritten_bytes INTEGER;
