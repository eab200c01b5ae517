-- Container format 1. Every main write stands once, in journal.writes; the tables below the
-- journal hold keys, small facts and seqs, and can be dropped and rebuilt from it (BR-12).
-- A seq names its write: the row of journal whose first..last holds it, element seq - first.

CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    sid TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    created INTEGER NOT NULL,
    head INTEGER NOT NULL DEFAULT 0,
    time INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0,
    owner TEXT
);

CREATE TABLE opening (
    session INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    opened INTEGER NOT NULL,
    closed INTEGER,
    PRIMARY KEY (session, epoch)
) WITHOUT ROWID;

-- blobs: what was moved into files, as JSON [[seq, field, whole, [[offset, sha256], …]], …].
-- crc: of the commit's line, see docs/internals/FORMAT.md.
CREATE TABLE journal (
    session INTEGER NOT NULL,
    last INTEGER NOT NULL,
    first INTEGER NOT NULL,
    time INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    blobs TEXT,
    writes TEXT NOT NULL
);
CREATE UNIQUE INDEX journal_end ON journal (session, last);

CREATE TABLE working_value (
    session INTEGER NOT NULL,
    scope TEXT NOT NULL,
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL,
    value TEXT NOT NULL
);
CREATE UNIQUE INDEX working_value_place ON working_value (session, scope, namespace, key);

CREATE TABLE working_element (
    session INTEGER NOT NULL,
    scope TEXT NOT NULL,
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL,
    tag TEXT,
    value TEXT NOT NULL
);
CREATE UNIQUE INDEX working_element_place
    ON working_element (session, scope, namespace, key, seq);
