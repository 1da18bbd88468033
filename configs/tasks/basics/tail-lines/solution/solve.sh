#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/logview/tail.py b/logview/tail.py
--- a/logview/tail.py
+++ b/logview/tail.py
@@ -9,10 +9,15 @@
     """The last `n` lines of a text file."""
     with open(path, "rb") as file:
         end = file.seek(0, os.SEEK_END)
-        text = ""
-        while end > 0 and text.count("\n") < n:
+        blocks, breaks = [], 0
+        while end > 0 and breaks <= n:
             start = max(0, end - block)
             file.seek(start)
-            text = file.read(end - start).decode("utf-8", "ignore") + text
+            blocks.append(file.read(end - start))
+            breaks += blocks[-1].count(b"\n")
             end = start
-        return text.split("\n")[-n:]
+    lines = b"".join(reversed(blocks)).split(b"\n")
+    if lines[-1] == b"":
+        lines.pop()
+    last = lines[-n:] if n > 0 else []
+    return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in last]
PATCH
