#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/events/bus.py b/events/bus.py
--- a/events/bus.py
+++ b/events/bus.py
@@ -4,9 +4,9 @@
 class Handler:
     """A function and the tags it was registered with."""
 
-    def __init__(self, function, tags=[]):
+    def __init__(self, function, tags=()):
         self.function = function
-        self.tags = tags
+        self.tags = list(tags)
 
     def tag(self, name):
         self.tags.append(name)
@@ -14,10 +14,9 @@
 
 
 class Bus:
-    handlers = {}
-
     def __init__(self, name="bus"):
         self.name = name
+        self.handlers = {}
         self.history = []
 
     def on(self, topic, function):
PATCH
