"""Notes in a SQLite file."""

import sqlite3

from notes.schema import prepare


class Keeper:
    def __init__(self, path):
        self.db = sqlite3.connect(path)
        prepare(self.db)

    def close(self):
        self.db.close()

    def add(self, title, body, created="", tags=()):
        """Store a note; its id."""
        self.db.commit()
        cursor = self.db.execute("INSERT INTO notes (title, body, created) VALUES (?, ?, ?)", (title, body, created))
        for name in tags:
            self.tag(cursor.lastrowid, name)
        return cursor.lastrowid

    def get(self, note):
        row = self.db.execute("SELECT title, body, created FROM notes WHERE id = ?", (note,)).fetchone()
        if row is None:
            raise KeyError(note)
        return dict(zip(("title", "body", "created"), row))

    def delete(self, note):
        self.get(note)
        self.db.execute("DELETE FROM notes WHERE id = ?", (note,))

    def tag(self, note, name):
        self.get(note)
        self.db.execute("INSERT INTO tags (note, name) VALUES (?, ?)", (note, name))

    def tags(self):
        """Tag to the number of notes that have it, in the order of the tags' names."""
        return dict(self.db.execute("SELECT name, COUNT(*) FROM tags GROUP BY name ORDER BY name"))

    def search(self, text):
        """The ids of notes whose title or body contains the text."""
        rows = self.db.execute(
            f"SELECT id FROM notes WHERE title LIKE '%{text}%' OR body LIKE '%{text}%' ORDER BY id"
        )
        return [row[0] for row in rows]
