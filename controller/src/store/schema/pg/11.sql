-- PostgreSQL's schema 11: equal in meaning to the embedded database's schema 12 (`../12.sql`). Never edit a schema
-- that was released: add the next file.

-- Agents that joined with a token; those of the configuration file are not here. `id` names the enrolment in the agent's
-- certificate: a new join makes a new one. `expires_us` is the end of that certificate.
CREATE TABLE enrolments (
    name       TEXT COLLATE "C" PRIMARY KEY,
    id         TEXT COLLATE "C" NOT NULL,
    address    TEXT COLLATE "C" NOT NULL,
    roles      TEXT COLLATE "C" NOT NULL,
    state      TEXT COLLATE "C" NOT NULL CHECK (state IN ('enrolled', 'revoked')),
    zone       TEXT COLLATE "C",
    joined_us  BIGINT NOT NULL,
    expires_us BIGINT NOT NULL
);
CREATE UNIQUE INDEX enrolments_by_id ON enrolments (id);

-- Tokens: the SHA-256 of each, in hexadecimal digits. `used_by`: the SHA-256 of the key of the one that has joined with it,
-- who may ask again when the answer was lost; nobody else may.
CREATE TABLE join_tokens (
    hash       TEXT COLLATE "C" PRIMARY KEY,
    name       TEXT COLLATE "C" NOT NULL,
    roles      TEXT COLLATE "C" NOT NULL,
    zone       TEXT COLLATE "C",
    expires_us BIGINT NOT NULL,
    used_by    TEXT COLLATE "C"
);
CREATE UNIQUE INDEX join_tokens_by_name ON join_tokens (name);
