#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/static/server.py b/static/server.py
--- a/static/server.py
+++ b/static/server.py
@@ -1,18 +1,24 @@
 """Answers requests for files below one folder. No sockets here: the caller brings the path."""
 
 import os
+from urllib.parse import unquote
 
 from static.types import content_type
 
 
 class StaticFiles:
     def __init__(self, root):
-        self.root = os.path.abspath(root)
+        self.root = os.path.realpath(root)
 
     def locate(self, url_path):
         """The file that a URL path names, whether it exists or not; PermissionError outside the root."""
-        path = os.path.abspath(os.path.join(self.root, url_path.split("?")[0].lstrip("/")))
-        if not path.startswith(self.root):
+        name = unquote(url_path.split("?")[0]).lstrip("/")
+        if "\0" in name:
+            raise PermissionError(url_path)
+        path = os.path.realpath(os.path.join(self.root, name))
+        if os.path.isdir(path):
+            path = os.path.realpath(os.path.join(path, "index.html"))
+        if os.path.commonpath([self.root, path]) != self.root:
             raise PermissionError(url_path)
         return path
 
PATCH
