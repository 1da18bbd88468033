#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/stats/summary.py b/stats/summary.py
--- a/stats/summary.py
+++ b/stats/summary.py
@@ -8,8 +8,11 @@
 
 
 def median(values):
-    values.sort()
-    return values[len(values) // 2]
+    ordered = sorted(values)
+    middle = len(ordered) // 2
+    if len(ordered) % 2:
+        return ordered[middle]
+    return (ordered[middle - 1] + ordered[middle]) / 2
 
 
 def spread(values):
@@ -22,6 +25,7 @@
 
 def summary(values):
     """Count, mean, median, spread, smallest and largest. Raises ValueError for no values."""
+    values = list(values)
     if not values:
         raise ValueError("no values to summarise")
     return {
PATCH
