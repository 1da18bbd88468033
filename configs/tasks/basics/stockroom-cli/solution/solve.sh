#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/stockroom/__main__.py b/stockroom/__main__.py
--- a/stockroom/__main__.py
+++ b/stockroom/__main__.py
@@ -2,4 +2,4 @@
 
 from stockroom.cli import main
 
-main(sys.argv[1:])
+sys.exit(main(sys.argv[1:]))
diff --git a/stockroom/items.py b/stockroom/items.py
--- a/stockroom/items.py
+++ b/stockroom/items.py
@@ -10,8 +10,8 @@
     location: str = ""
 
     def to_json(self):
-        return {"name": self.name, "quantity": self.quantity}
+        return {"name": self.name, "quantity": self.quantity, "location": self.location}
 
     @classmethod
     def from_json(cls, data):
-        return cls(data["name"], data["quantity"])
+        return cls(data["name"], data["quantity"], data.get("location", ""))
diff --git a/stockroom/store.py b/stockroom/store.py
--- a/stockroom/store.py
+++ b/stockroom/store.py
@@ -20,21 +20,34 @@
                     self.items[data["name"]] = Item.from_json(data)
 
     def save(self):
-        with open(self.path, "w") as file:
-            json.dump({"items": [item.to_json() for item in self.items.values()]}, file, indent=1)
+        aside = f"{self.path}.new"
+        try:
+            with open(aside, "w") as file:
+                json.dump({"items": [item.to_json() for item in self.items.values()]}, file, indent=1)
+                file.flush()
+                os.fsync(file.fileno())
+            os.replace(aside, self.path)
+        except BaseException:
+            if os.path.exists(aside):
+                os.unlink(aside)
+            raise
 
     def add(self, name, quantity, location=""):
         if quantity < 1:
             raise StockError("a quantity must be at least 1")
-        self.items[name] = Item(name, quantity, location)
+        item = self.items.setdefault(name, Item(name))
+        item.quantity += quantity
+        item.location = location or item.location
 
     def remove(self, name, quantity):
         item = self.items.get(name)
         if item is None:
             raise StockError(f"no such item: {name}")
+        if quantity < 1:
+            raise StockError("a quantity must be at least 1")
+        if item.quantity < quantity:
+            raise StockError(f"only {item.quantity} of {name} left")
         item.quantity -= quantity
-        if item.quantity < 0:
-            raise StockError(f"only {item.quantity + quantity} of {name} left")
 
     def low(self, limit):
-        return [item for item in self.items.values() if item.quantity < limit]
+        return [item for item in self.items.values() if item.quantity <= limit]
diff --git a/stockroom/cli.py b/stockroom/cli.py
--- a/stockroom/cli.py
+++ b/stockroom/cli.py
@@ -1,6 +1,7 @@
 """The command line."""
 
 import argparse
+import sys
 
 from stockroom.store import StockError, Store
 
@@ -39,6 +40,6 @@
     try:
         run(options)
     except StockError as error:
-        print(f"stockroom: {error}")
+        print(f"stockroom: {error}", file=sys.stderr)
         return 1
     return 0
PATCH
