#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/rooms/intervals.py b/rooms/intervals.py
--- a/rooms/intervals.py
+++ b/rooms/intervals.py
@@ -4,11 +4,11 @@
 def merge(stretches):
     """The same busy time in as few stretches as possible, in order. Empty stretches vanish."""
     merged = []
-    for start, end in stretches:
+    for start, end in sorted(stretches):
         if start >= end:
             continue
-        if merged and start < merged[-1][1]:
-            merged[-1] = (merged[-1][0], end)
+        if merged and start <= merged[-1][1]:
+            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
         else:
             merged.append((start, end))
     return merged
diff --git a/rooms/planner.py b/rooms/planner.py
--- a/rooms/planner.py
+++ b/rooms/planner.py
@@ -8,9 +8,9 @@
     free = []
     at = opens
     for start, end in merge(bookings):
-        if start > at:
-            free.append((at, start))
-        at = end
+        if at < min(start, closes):
+            free.append((at, min(start, closes)))
+        at = max(at, end)
     if at < closes:
         free.append((at, closes))
     return free
PATCH
