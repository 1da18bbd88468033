#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/calendaric/days.py b/calendaric/days.py
--- a/calendaric/days.py
+++ b/calendaric/days.py
@@ -5,7 +5,7 @@
 
 
 def is_leap(year):
-    return year % 4 == 0
+    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
 
 
 def days_in_month(year, month):
@@ -19,7 +19,7 @@
     if not 1 <= day <= days_in_month(year, month):
         raise ValueError(f"no such day: {year:04d}-{month:02d}-{day:02d}")
     before = year - 1
-    return before * 365 + before // 4 + sum(days_in_month(year, m) for m in range(1, month)) + day
+    return before * 365 + before // 4 - before // 100 + before // 400 + sum(days_in_month(year, m) for m in range(1, month)) + day
 
 
 def weekday(year, month, day):
PATCH
