-- Schema 17. Never edit a schema that was released: add the next file.

-- Attachments that `os-reserve` announced end by themselves, as announced detaches do. `reserved_until_us` identifies the last
-- announcement; NULL: an earlier release made it.
ALTER TABLE volumes ADD COLUMN reserved_until_us INTEGER;
