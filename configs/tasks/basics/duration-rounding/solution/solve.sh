#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/timing/text.py b/timing/text.py
--- a/timing/text.py
+++ b/timing/text.py
@@ -5,10 +5,10 @@
     """`4.2s`, `1m 05s` or `2h 03m 09s`; negative durations carry a minus sign."""
     if seconds < 0:
         return "-" + format_duration(-seconds)
-    if seconds < 60:
+    if round(seconds, 1) < 60:
         return f"{seconds:.1f}s"
-    minutes, rest = divmod(seconds, 60)
+    minutes, rest = divmod(round(seconds), 60)
     if minutes < 60:
-        return f"{int(minutes)}m {rest:02.0f}s"
+        return f"{minutes}m {rest:02d}s"
     hours, minutes = divmod(minutes, 60)
-    return f"{int(hours)}h {int(minutes):02d}m {rest:02.0f}s"
+    return f"{hours}h {minutes:02d}m {rest:02d}s"
PATCH
