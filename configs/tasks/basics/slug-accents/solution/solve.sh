#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/blog/slugs.py b/blog/slugs.py
--- a/blog/slugs.py
+++ b/blog/slugs.py
@@ -1,6 +1,7 @@
 """Slugs: the part of an article's URL that is made from its title."""
 
 import re
+import unicodedata
 
 MAX_LENGTH = 60
 _SEPARATORS = re.compile(r"[^a-z0-9]+")
@@ -8,7 +9,7 @@
 
 def slugify(title, max_length=MAX_LENGTH):
     """Lower-case words joined by dashes, cut at a word boundary to at most `max_length` characters."""
-    text = title.lower()
+    text = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
     slug = _SEPARATORS.sub("-", text).strip("-")
     if len(slug) <= max_length:
         return slug
PATCH
