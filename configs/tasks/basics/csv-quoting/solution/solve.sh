#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/export/writer.py b/export/writer.py
--- a/export/writer.py
+++ b/export/writer.py
@@ -9,8 +9,9 @@
     if value is None:
         return ""
     text = str(value)
-    if SEPARATOR in text:
-        return f'"{text}"'
+    if any(special in text for special in (SEPARATOR, '"', "\r", "\n")):
+        escaped = text.replace('"', '""')
+        return f'"{escaped}"'
     return text
 
 
PATCH
