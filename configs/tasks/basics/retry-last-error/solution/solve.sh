#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/retrying/core.py b/retrying/core.py
--- a/retrying/core.py
+++ b/retrying/core.py
@@ -15,14 +15,14 @@
         @functools.wraps(function)
         def call(*args, **kwargs):
             wait = delay
-            for attempt in range(attempts + 1):
+            for attempt in range(1, attempts + 1):
                 try:
                     return function(*args, **kwargs)
-                except Exception as error:
-                    if not isinstance(error, on):
-                        continue
-                    sleep(wait)
-                    wait = min(wait, max_delay) * 2
+                except on:
+                    if attempt == attempts:
+                        raise
+                    sleep(min(wait, max_delay))
+                    wait *= 2
 
         return call
 
PATCH
