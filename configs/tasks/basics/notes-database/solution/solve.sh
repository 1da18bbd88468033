#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/notes/schema.py b/notes/schema.py
--- a/notes/schema.py
+++ b/notes/schema.py
@@ -10,6 +10,10 @@
 
 
 def prepare(connection):
-    """Make the tables where there are none."""
+    """Make the tables where there are none, and bring older ones up to date."""
+    connection.execute("PRAGMA foreign_keys = ON")
     connection.executescript(TABLES)
+    columns = [row[1] for row in connection.execute("PRAGMA table_info(notes)")]
+    if "created" not in columns:
+        connection.execute("ALTER TABLE notes ADD COLUMN created TEXT NOT NULL DEFAULT ''")
     connection.execute(f"PRAGMA user_version = {VERSION}")
diff --git a/notes/keeper.py b/notes/keeper.py
--- a/notes/keeper.py
+++ b/notes/keeper.py
@@ -15,10 +15,12 @@
 
     def add(self, title, body, created="", tags=()):
         """Store a note; its id."""
-        self.db.commit()
-        cursor = self.db.execute("INSERT INTO notes (title, body, created) VALUES (?, ?, ?)", (title, body, created))
-        for name in tags:
-            self.tag(cursor.lastrowid, name)
+        with self.db:
+            cursor = self.db.execute(
+                "INSERT INTO notes (title, body, created) VALUES (?, ?, ?)", (title, body, created)
+            )
+            for name in tags:
+                self._tag(cursor.lastrowid, name)
         return cursor.lastrowid
 
     def get(self, note):
@@ -29,11 +31,20 @@
 
     def delete(self, note):
         self.get(note)
-        self.db.execute("DELETE FROM notes WHERE id = ?", (note,))
+        with self.db:
+            self.db.execute("DELETE FROM tags WHERE note = ?", (note,))
+            self.db.execute("DELETE FROM notes WHERE id = ?", (note,))
 
     def tag(self, note, name):
         self.get(note)
-        self.db.execute("INSERT INTO tags (note, name) VALUES (?, ?)", (note, name))
+        with self.db:
+            self._tag(note, name)
+
+    def _tag(self, note, name):
+        self.db.execute(
+            "INSERT INTO tags (note, name) SELECT ?, ? WHERE NOT EXISTS (SELECT 1 FROM tags WHERE note = ? AND name = ?)",
+            (note, name, note, name),
+        )
 
     def tags(self):
         """Tag to the number of notes that have it, in the order of the tags' names."""
@@ -41,7 +52,6 @@
 
     def search(self, text):
         """The ids of notes whose title or body contains the text."""
-        rows = self.db.execute(
-            f"SELECT id FROM notes WHERE title LIKE '%{text}%' OR body LIKE '%{text}%' ORDER BY id"
-        )
-        return [row[0] for row in rows]
+        wanted = text.casefold()
+        rows = self.db.execute("SELECT id, title, body FROM notes ORDER BY id")
+        return [note for note, *texts in rows if any(wanted in one.casefold() for one in texts)]
PATCH
