"""The schema of the run database, as append-only migrations. A migration that has been released is never edited."""

from __future__ import annotations

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

migrations = Migrations("lego")

# Statements run one by one: sqlite3's executescript commits first, which would break the migration's transaction.
_M001 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

CREATE TABLE events (
  id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL, detail TEXT NOT NULL DEFAULT '{}'
) STRICT;

CREATE TABLE tasks (
  id TEXT PRIMARY KEY, split TEXT NOT NULL CHECK (split IN ('train', 'eval')), position INTEGER NOT NULL,
  digest TEXT NOT NULL, source TEXT NOT NULL, instruction TEXT NOT NULL, place TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE TABLE images (
  key TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, tag TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('built', 'cached', 'failed')),
  log_path TEXT NOT NULL DEFAULT '', seconds REAL NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
  reason TEXT NOT NULL DEFAULT '', at REAL NOT NULL
) STRICT;

CREATE TABLE baselines (
  id INTEGER PRIMARY KEY, task_id TEXT NOT NULL REFERENCES tasks(id),
  kind TEXT NOT NULL CHECK (kind IN ('empty', 'gold')), at REAL NOT NULL, reward REAL, outcome TEXT NOT NULL,
  detail TEXT NOT NULL DEFAULT '{}', log BLOB, seconds REAL NOT NULL
) STRICT;

CREATE TABLE policies (
  version INTEGER PRIMARY KEY, parent INTEGER REFERENCES policies(version), path TEXT NOT NULL, digest TEXT NOT NULL,
  made_by TEXT NOT NULL CHECK (made_by IN ('start', 'sft', 'train')), at REAL NOT NULL, removed_at REAL
) STRICT;

CREATE TABLE rounds (
  id INTEGER PRIMARY KEY, kind TEXT NOT NULL CHECK (kind IN ('train', 'eval', 'demo')), ordinal INTEGER NOT NULL,
  policy_version INTEGER NOT NULL REFERENCES policies(version), settings TEXT NOT NULL DEFAULT '{}',
  status TEXT NOT NULL CHECK (status IN ('open', 'closed')), opened_at REAL NOT NULL, closed_at REAL,
  reason TEXT NOT NULL DEFAULT '', UNIQUE (kind, ordinal)
) STRICT;

CREATE TABLE round_tasks (
  round_id INTEGER NOT NULL REFERENCES rounds(id), position INTEGER NOT NULL,
  task_id TEXT NOT NULL REFERENCES tasks(id), harness TEXT NOT NULL, PRIMARY KEY (round_id, position)
) STRICT;

CREATE TABLE trials (
  id INTEGER PRIMARY KEY, round_id INTEGER NOT NULL REFERENCES rounds(id), task_id TEXT NOT NULL REFERENCES tasks(id),
  harness TEXT NOT NULL, sample INTEGER NOT NULL, attempt INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'finished', 'failed')),
  fault TEXT CHECK (fault IN ('infra', 'policy', 'task', 'user')), ending TEXT NOT NULL DEFAULT '',
  reason TEXT NOT NULL DEFAULT '', lease_owner TEXT, lease_until REAL, started_at REAL, ended_at REAL,
  seconds REAL, waited REAL, exit_code INTEGER, summary TEXT NOT NULL DEFAULT '{}', output BLOB,
  submission BLOB, submission_digest TEXT, submission_note TEXT NOT NULL DEFAULT '{}',
  verify_owner TEXT, verify_until REAL, verify_attempts INTEGER NOT NULL DEFAULT 0,
  UNIQUE (round_id, task_id, harness, sample, attempt)
) STRICT;
CREATE INDEX trials_by_state ON trials (round_id, status);

CREATE TABLE tool_lists (digest TEXT PRIMARY KEY, tools TEXT NOT NULL) STRICT;

CREATE TABLE calls (
  id INTEGER PRIMARY KEY, trial_id INTEGER NOT NULL REFERENCES trials(id), seq INTEGER NOT NULL, parent_seq INTEGER,
  shared INTEGER NOT NULL DEFAULT 0, kind TEXT NOT NULL CHECK (kind IN ('main', 'subagent', 'auxiliary', 'rejected')),
  sampler TEXT NOT NULL CHECK (sampler IN ('policy', 'script')), policy_version INTEGER NOT NULL, dialect TEXT NOT NULL,
  added_prompt_ids BLOB, completion_ids BLOB, logprobs BLOB,
  prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
  finish TEXT NOT NULL DEFAULT '', fate TEXT NOT NULL DEFAULT 'delivered'
    CHECK (fate IN ('delivered', 'abandoned', 'superseded')),
  status INTEGER NOT NULL, reason TEXT NOT NULL DEFAULT '', messages TEXT NOT NULL, reply TEXT NOT NULL,
  tools_digest TEXT REFERENCES tool_lists(digest), wishes TEXT NOT NULL DEFAULT '{}', drift TEXT NOT NULL DEFAULT '{}',
  started_at REAL NOT NULL, first_token_at REAL, ended_at REAL NOT NULL, UNIQUE (trial_id, seq)
) STRICT;

CREATE TABLE verdicts (
  id INTEGER PRIMARY KEY, trial_id INTEGER NOT NULL REFERENCES trials(id), at REAL NOT NULL, reward REAL,
  outcome TEXT NOT NULL CHECK (outcome IN ('passed', 'failed', 'broken', 'error')), detail TEXT NOT NULL DEFAULT '{}',
  tamper TEXT NOT NULL DEFAULT '[]', trust TEXT NOT NULL DEFAULT '', log BLOB, seconds REAL NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX verdicts_by_trial ON verdicts (trial_id, id);

CREATE TABLE train_steps (
  step INTEGER PRIMARY KEY, round_id INTEGER NOT NULL UNIQUE REFERENCES rounds(id),
  kind TEXT NOT NULL CHECK (kind IN ('sft', 'rl')),
  policy_from INTEGER NOT NULL REFERENCES policies(version), policy_to INTEGER REFERENCES policies(version),
  status TEXT NOT NULL CHECK (status IN ('open', 'done', 'refused', 'skipped')), reason TEXT NOT NULL DEFAULT '',
  metrics TEXT NOT NULL DEFAULT '{}', worst TEXT NOT NULL DEFAULT '[]', opened_at REAL NOT NULL, closed_at REAL,
  lease_owner TEXT, lease_until REAL
) STRICT;

CREATE TABLE samples (
  id INTEGER PRIMARY KEY, step INTEGER NOT NULL REFERENCES train_steps(step),
  trial_id INTEGER NOT NULL REFERENCES trials(id),
  verdict_id INTEGER REFERENCES verdicts(id), segment INTEGER NOT NULL, advantage REAL NOT NULL, weight REAL NOT NULL,
  tokens INTEGER NOT NULL, dropped TEXT NOT NULL DEFAULT '', UNIQUE (step, trial_id, segment)
) STRICT;

CREATE TABLE evals (
  id INTEGER PRIMARY KEY, round_id INTEGER NOT NULL UNIQUE REFERENCES rounds(id), policy_version INTEGER NOT NULL,
  at REAL NOT NULL, n INTEGER NOT NULL, passed INTEGER NOT NULL,
  rate REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL, detail TEXT NOT NULL DEFAULT '{}'
) STRICT
"""


@migrations()
def m001_initial(db: Database) -> None:
    for statement in _M001.split(";"):
        if statement.strip():
            db.execute(statement)


@migrations()
def m002_pauses(db: Database) -> None:
    """When an attempt, or a verification, may begin (Unix seconds)."""
    for column in ("due", "verify_due"):
        db.execute(f"ALTER TABLE trials ADD COLUMN {column} REAL NOT NULL DEFAULT 0")
