#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/web/routes.py b/web/routes.py
--- a/web/routes.py
+++ b/web/routes.py
@@ -1,6 +1,7 @@
 """Patterns such as `/users/<int:id>/files/<path:rest>`."""
 
 import re
+from urllib.parse import quote, unquote
 
 _PART = re.compile(r"<(?:(\w+):)?(\w+)>")
 
@@ -16,20 +17,53 @@
         self.methods = methods
         self.name = name
         self.parts = pattern.strip("/").split("/")
+        self.rank = tuple(self._rank(part) for part in self.parts)
+
+    @staticmethod
+    def _rank(part):
+        """Fixed parts come before numbers, those before any text, and that before paths."""
+        found = _PART.fullmatch(part)
+        return {None: 2, "int": 1, "path": 3}.get(found.group(1), 2) if found else 0
 
     def match(self, path):
         """The parameters, or None where the path does not fit."""
         pieces = path.strip("/").split("/")
-        if len(pieces) != len(self.parts):
-            return None
         parameters = {}
-        for part, piece in zip(self.parts, pieces):
+        for number, part in enumerate(self.parts):
             found = _PART.fullmatch(part)
-            if found:
-                parameters[found.group(2)] = piece
-            elif part != piece:
+            kind, name = found.groups() if found else (None, None)
+            if kind == "path":
+                rest = "/".join(unquote(piece) for piece in pieces[number:])
+                if not rest:
+                    return None
+                parameters[name] = rest
+                return parameters
+            if number >= len(pieces):
                 return None
-        return parameters
+            text = unquote(pieces[number])
+            if not found:
+                if text != part:
+                    return None
+            elif kind == "int":
+                if not (text.isascii() and text.isdigit()):
+                    return None
+                parameters[name] = int(text)
+            elif text:
+                parameters[name] = text
+            else:
+                return None
+        return parameters if len(pieces) == len(self.parts) else None
 
     def build(self, parameters):
-        return _PART.sub(lambda found: str(parameters.get(found.group(2), "")), self.pattern)
+        left = dict(parameters)
+
+        def fill(found):
+            kind, name = found.groups()
+            if name not in left:
+                raise RouteError(f"{self.name} needs the parameter {name}")
+            return quote(str(left.pop(name)), safe="/" if kind == "path" else "")
+
+        url = _PART.sub(fill, self.pattern)
+        if left:
+            raise RouteError(f"{self.name} has no parameter {', '.join(left)}")
+        return url
diff --git a/web/router.py b/web/router.py
--- a/web/router.py
+++ b/web/router.py
@@ -12,11 +12,20 @@
 
     def find(self, method, path):
         """(route, parameters), or None."""
-        for route in self.routes:
-            parameters = route.match(path)
-            if parameters is not None and method in route.methods:
-                return route, parameters
-        return None
+        wanted = "GET" if method == "HEAD" and not self._serves("HEAD", path) else method
+        fitting = [route for route in self.routes if wanted in route.methods and route.match(path) is not None]
+        if not fitting:
+            return None
+        best = min(fitting, key=lambda route: route.rank)
+        return best, best.match(path)
+
+    def _serves(self, method, path):
+        return any(method in route.methods and route.match(path) is not None for route in self.routes)
+
+    def allowed(self, path):
+        """The methods that the path answers to, sorted."""
+        methods = {method for route in self.routes if route.match(path) is not None for method in route.methods}
+        return sorted(methods | ({"HEAD"} if "GET" in methods else set()))
 
     def url_for(self, name, **parameters):
         for route in self.routes:
diff --git a/web/app.py b/web/app.py
--- a/web/app.py
+++ b/web/app.py
@@ -28,9 +28,14 @@
 
     def handle(self, method, path):
         """Answer a request. A handler gets the parameters by name and returns text or a Response."""
-        found = self.router.find(method, path.split("?")[0])
+        path = path.split("?")[0]
+        found = self.router.find(method, path)
         if found is None:
+            allowed = self.router.allowed(path)
+            if allowed:
+                return Response(405, "method not allowed", {"Allow": ", ".join(allowed)})
             return Response(404, "not found")
         route, parameters = found
         answer = route.handler(**parameters)
-        return answer if isinstance(answer, Response) else Response(200, answer)
+        response = answer if isinstance(answer, Response) else Response(200, answer)
+        return Response(response.status, "", response.headers) if method == "HEAD" else response
PATCH
