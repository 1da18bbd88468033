#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/settings/reader.py b/settings/reader.py
--- a/settings/reader.py
+++ b/settings/reader.py
@@ -1,4 +1,6 @@
 """Settings files: `[section]` lines, `key = value` lines and `#` comments."""
+
+import re
 
 
 class SettingsError(ValueError):
@@ -7,23 +9,38 @@
         self.line = line
 
 
+def _value(raw, number):
+    """The value that `raw` holds, comment and quotes removed."""
+    raw = raw.strip()
+    if raw.startswith('"'):
+        value, quote, rest = raw[1:].partition('"')
+        rest = rest.strip()
+        if not quote:
+            raise SettingsError(number, "quote without an end")
+        if rest and not rest.startswith("#"):
+            raise SettingsError(number, "text after the closing quote")
+        return value
+    return re.split(r"\s#", raw, maxsplit=1)[0].strip()
+
+
 def parse(text):
     """A dict of sections, each a dict of texts. Keys before the first section are in section ""."""
     result = {"": {}}
     current = result[""]
-    for number, line in enumerate(text.splitlines()):
-        line = line.split("#")[0].strip()
-        if not line:
+    for number, line in enumerate(text.splitlines(), start=1):
+        line = line.strip()
+        if not line or line.startswith("#"):
             continue
         if line.startswith("["):
+            line = re.split(r"\s#", line, maxsplit=1)[0].strip()
             if not line.endswith("]"):
                 raise SettingsError(number, "section without closing bracket")
-            current = result[line[1:-1].strip()] = {}
+            current = result.setdefault(line[1:-1].strip(), {})
             continue
         if "=" not in line:
             raise SettingsError(number, "neither a section nor a value")
-        key, value = line.split("=")[:2]
+        key, _, value = line.partition("=")
         if not key.strip():
             raise SettingsError(number, "value without a key")
-        current[key.strip()] = value.strip()
+        current[key.strip()] = _value(value, number)
     return result
PATCH
