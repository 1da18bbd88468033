#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/shop/paging.py b/shop/paging.py
--- a/shop/paging.py
+++ b/shop/paging.py
@@ -22,7 +22,7 @@
 def page_count(total, per_page):
     if per_page < 1:
         raise ValueError("per_page must be at least 1")
-    return max(1, total // per_page)
+    return max(1, -(-total // per_page))
 
 
 def paginate(items, number=1, per_page=20):
PATCH
