#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/maker/graph.py b/maker/graph.py
--- a/maker/graph.py
+++ b/maker/graph.py
@@ -9,18 +9,24 @@
 
 def order(needs):
     """All targets, each after those it needs. `needs` maps a target to a list of targets."""
-    seen, result = set(), []
-
-    def visit(target):
-        if target in seen:
-            raise CycleError([target])
-        seen.add(target)
-        for needed in needs[target]:
-            if needed != target and needed in needs:
-                visit(needed)
-        result.append(target)
-
-    for target in needs:
-        if target not in seen:
-            visit(target)
+    done, result = set(), []
+    for start in needs:
+        if start in done:
+            continue
+        path, on_path = [start], {start}
+        waiting = [iter(needs[start])]
+        while path:
+            needed = next(waiting[-1], None)
+            if needed is None:
+                target = path.pop()
+                waiting.pop()
+                on_path.discard(target)
+                done.add(target)
+                result.append(target)
+            elif needed in on_path:
+                raise CycleError([*path[path.index(needed) :], needed])
+            elif needed not in done:
+                path.append(needed)
+                on_path.add(needed)
+                waiting.append(iter(needs.get(needed, [])))
     return result
PATCH
