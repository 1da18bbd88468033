#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/templates/engine.py b/templates/engine.py
--- a/templates/engine.py
+++ b/templates/engine.py
@@ -1,5 +1,6 @@
 """`{{ dotted.name }}` and `{{ dotted.name | filter }}` in HTML."""
 
+import html
 import re
 
 from templates.filters import FILTERS
@@ -11,22 +12,27 @@
     pass
 
 
-def _lookup(name, context):
+def _lookup(name, context, strict):
     value = context
     for part in name.split("."):
-        value = value[part]
+        try:
+            value = value[part]
+        except (KeyError, TypeError, IndexError):
+            if strict:
+                raise TemplateError(f"no such name: {name}") from None
+            return ""
     return value
 
 
 def render(template, context, strict=False):
     """The template with every tag replaced. Raises TemplateError for an unknown filter."""
-    while True:
-        match = _TAG.search(template)
-        if match is None:
-            return template
+
+    def fill(match):
         name, chosen = match.groups()
-        value = _lookup(name, context)
         if chosen and chosen not in FILTERS:
             raise TemplateError(f"no such filter: {chosen}")
+        value = _lookup(name, context, strict)
         text = FILTERS[chosen](value) if chosen else str(value)
-        template = template[: match.start()] + text + template[match.end() :]
+        return text if chosen == "raw" else html.escape(text)
+
+    return _TAG.sub(fill, template)
PATCH
