"""The tables, and how they came to be."""

VERSION = 2

TABLES = """
CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, title TEXT NOT NULL, body TEXT NOT NULL,
                                  created TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS tags (note INTEGER NOT NULL REFERENCES notes (id) ON DELETE CASCADE, name TEXT NOT NULL);
"""


def prepare(connection):
    """Make the tables where there are none."""
    connection.executescript(TABLES)
    connection.execute(f"PRAGMA user_version = {VERSION}")
