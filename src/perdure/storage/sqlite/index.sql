-- Private indexes of the journal: no payload, rebuildable (BR-12, SQ-14).

CREATE TABLE name (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    key TEXT NOT NULL
);
CREATE UNIQUE INDEX name_place ON name (session, namespace, key);

CREATE TABLE conversation (
    session INTEGER NOT NULL,
    id INTEGER NOT NULL,
    parent INTEGER,
    at_entry INTEGER,
    as_of INTEGER,
    inherits INTEGER,
    owner INTEGER,
    deleted INTEGER,
    PRIMARY KEY (session, id)
) WITHOUT ROWID;
CREATE INDEX conversation_parent ON conversation (session, parent, id) WHERE parent IS NOT NULL;
CREATE INDEX conversation_owner ON conversation (session, owner, id) WHERE owner IS NOT NULL;

-- Inbox, label and queue modes after each patch.
CREATE TABLE settings (
    session INTEGER NOT NULL,
    conv INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    settings TEXT NOT NULL,
    PRIMARY KEY (session, conv, seq)
) WITHOUT ROWID;

-- The whole list at creation (when not empty), replace and reset, and at an append whose ids are
-- not just the entries of its own commit (D04).
CREATE TABLE context (
    session INTEGER NOT NULL,
    conv INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    version INTEGER NOT NULL,
    ids TEXT NOT NULL
);
CREATE UNIQUE INDEX context_place ON context (session, conv, seq);

-- What happened in a conversation, in order: its entries, and (kind NULL) the ends of commits
-- that touched it and did not end with an entry of it. The newest id is the commitEnd.
-- selected: appended to the context by its own commit, in the order of ids.
CREATE TABLE timeline (
    session INTEGER NOT NULL,
    conv INTEGER NOT NULL,
    id INTEGER NOT NULL,
    selected INTEGER NOT NULL,
    kind TEXT,
    key TEXT,
    PRIMARY KEY (session, conv, id)
) WITHOUT ROWID;
CREATE INDEX timeline_selected ON timeline (session, conv, id) WHERE selected=1;
CREATE INDEX timeline_key ON timeline (session, conv, key, id) WHERE key IS NOT NULL;

-- A task (seq 0) and, below it, one row for each patch of it, the settlement included.
CREATE TABLE task (
    session INTEGER NOT NULL,
    id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    conv INTEGER,
    kind TEXT,
    settled INTEGER,
    PRIMARY KEY (session, id, seq)
) WITHOUT ROWID;
CREATE INDEX task_conv ON task (session, conv, id) WHERE seq=0;
CREATE INDEX task_live ON task (session, id, conv) WHERE seq=0 AND settled IS NULL;

-- Current session values: namespace is a row of name with an empty key.
CREATE TABLE session_value (
    session INTEGER NOT NULL,
    namespace INTEGER NOT NULL,
    key TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (session, namespace, key)
) WITHOUT ROWID;

-- Versions of conversation values.
CREATE TABLE version (
    session INTEGER NOT NULL,
    name INTEGER NOT NULL,
    conv INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    PRIMARY KEY (session, name, conv, seq)
) WITHOUT ROWID;

-- Elements of conversation lists and, with conv 0, of session lists.
CREATE TABLE element (
    session INTEGER NOT NULL,
    name INTEGER NOT NULL,
    conv INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    tag TEXT,
    PRIMARY KEY (session, name, conv, seq)
) WITHOUT ROWID;
