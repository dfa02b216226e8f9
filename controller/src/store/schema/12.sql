-- Schema 12. Never edit a schema that was released: add the next file.

-- Agents that joined with a token; those of the configuration file are not here. `id` names the enrolment in the agent's
-- certificate: a new join makes a new one. `expires_us` is the end of that certificate.
CREATE TABLE enrolments (
    name       TEXT    PRIMARY KEY,
    id         TEXT    NOT NULL,
    address    TEXT    NOT NULL,
    roles      TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('enrolled', 'revoked')),
    zone       TEXT,
    joined_us  INTEGER NOT NULL,
    expires_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX enrolments_by_id ON enrolments (id);

-- Tokens: the SHA-256 of each, in hexadecimal digits. `used_by`: the SHA-256 of the key of the one that has joined with it,
-- who may ask again when the answer was lost; nobody else may.
CREATE TABLE join_tokens (
    hash       TEXT    PRIMARY KEY,
    name       TEXT    NOT NULL,
    roles      TEXT    NOT NULL,
    zone       TEXT,
    expires_us INTEGER NOT NULL,
    used_by    TEXT
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX join_tokens_by_name ON join_tokens (name);
