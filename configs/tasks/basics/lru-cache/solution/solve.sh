#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/cache/lru.py b/cache/lru.py
--- a/cache/lru.py
+++ b/cache/lru.py
@@ -24,11 +24,12 @@
         return list(self._entries)
 
     def get(self, key, default=None):
-        value = self._entries.get(key)
-        if value is None:
+        if key not in self._entries:
             self.misses += 1
             return default
         self.hits += 1
+        value = self._entries.pop(key)
+        self._entries[key] = value
         return value
 
     def peek(self, key, default=None):
@@ -36,7 +37,9 @@
         return self._entries.get(key, default)
 
     def put(self, key, value):
-        if len(self._entries) >= self.capacity:
+        if key in self._entries:
+            del self._entries[key]
+        elif len(self._entries) >= self.capacity:
             oldest = next(iter(self._entries))
             dropped = self._entries.pop(oldest)
             if self.on_evict:
PATCH
