#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/calc/evaluate.py b/calc/evaluate.py
--- a/calc/evaluate.py
+++ b/calc/evaluate.py
@@ -18,39 +18,47 @@
 
     def sum(self):
         value = self.product()
-        if self.peek() in ("+", "-"):
+        while self.peek() in ("+", "-"):
             if self.take() == "+":
-                return value + self.sum()
-            return value - self.sum()
+                value += self.product()
+            else:
+                value -= self.product()
         return value
 
     def product(self):
-        value = self.power()
+        value = self.unary()
         while self.peek() in ("*", "/"):
             if self.take() == "*":
-                value *= self.power()
-            else:
-                value /= self.power()
+                value *= self.unary()
+                continue
+            divisor = self.unary()
+            if divisor == 0:
+                raise CalcError("division by zero")
+            value /= divisor
         return value
 
     def power(self):
-        value = self.unary()
-        while self.peek() == "^":
+        value = self.atom()
+        if self.peek() == "^":
             self.take()
-            value = value ** self.unary()
+            exponent = self.unary()
+            if value == 0 and exponent < 0:
+                raise CalcError("division by zero")
+            value = value**exponent
         return value
 
     def unary(self):
-        if self.peek() == "-" and self.at == 0:
+        if self.peek() == "-":
             self.take()
             return -self.unary()
-        return self.atom()
+        return self.power()
 
     def atom(self):
         token = self.take()
         if token == "(":
             value = self.sum()
-            self.take()
+            if self.take() != ")":
+                raise CalcError("missing )")
             return value
         if not isinstance(token, float):
             raise CalcError(f"unexpected {token!r}")
@@ -59,4 +67,8 @@
 
 def evaluate(text):
     """The value of an expression of numbers, + - * / ^ and parentheses."""
-    return _Parser(text).sum()
+    parser = _Parser(text)
+    value = parser.sum()
+    if parser.peek() is not None:
+        raise CalcError(f"unexpected {parser.peek()!r}")
+    return value
PATCH
