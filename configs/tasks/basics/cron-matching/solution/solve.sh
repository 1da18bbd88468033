#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/cron/fields.py b/cron/fields.py
--- a/cron/fields.py
+++ b/cron/fields.py
@@ -9,13 +9,25 @@
     """The set of numbers that a field such as `*/5`, `1-10/2` or `1,3,8` stands for."""
     values = set()
     for part in text.split(","):
-        span, _, step = part.partition("/")
-        step = int(step) if step else 1
+        span, slash, step_text = part.partition("/")
+        step = _number(step_text, text) if slash else 1
+        if step < 1:
+            raise CronError(f"a step must be at least 1: {text!r}")
         if span == "*":
-            values.update(value for value in range(low, high + 1) if value % 5 == 0 or step == 1)
+            first, last = low, high
         elif "-" in span:
-            first, last = span.split("-")
-            values.update(range(int(first), high + 1 if step > 1 else int(last) + 1, step))
+            start, _, end = span.partition("-")
+            first, last = _number(start, text), _number(end, text)
         else:
-            values.add(int(span))
+            first = _number(span, text)
+            last = high if slash else first
+        if not low <= first <= last <= high:
+            raise CronError(f"outside {low}-{high}: {text!r}")
+        values.update(range(first, last + 1, step))
     return values
+
+
+def _number(digits, text):
+    if not (digits.isascii() and digits.isdigit()):
+        raise CronError(f"cannot read {text!r}")
+    return int(digits)
diff --git a/cron/expression.py b/cron/expression.py
--- a/cron/expression.py
+++ b/cron/expression.py
@@ -20,6 +20,14 @@
         moment.minute in minutes
         and moment.hour in hours
         and moment.month in months
-        and moment.day in days
-        and moment.weekday() in weekdays
+        and _day_matches(expression.split(), days, weekdays, moment)
     )
+
+
+def _day_matches(fields, days, weekdays, moment):
+    sunday_is_zero = (moment.weekday() + 1) % 7
+    by_day = moment.day in days
+    by_weekday = sunday_is_zero in {weekday % 7 for weekday in weekdays}
+    if fields[2].startswith("*") or fields[4].startswith("*"):
+        return by_day and by_weekday
+    return by_day or by_weekday
PATCH
