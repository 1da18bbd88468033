#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/meetings/times.py b/meetings/times.py
--- a/meetings/times.py
+++ b/meetings/times.py
@@ -9,8 +9,12 @@
 
 def read(text, zone):
     """The point in time that an ISO 8601 text names."""
-    return datetime.fromisoformat(text[:16])
+    if text[-1:] in ("Z", "z"):
+        text = text[:-1] + "+00:00"
+    moment = datetime.fromisoformat(text)
+    return moment if moment.tzinfo else moment.replace(tzinfo=zone)
 
 
 def write(moment, zone):
-    return moment.isoformat(timespec="minutes")
+    local = moment.astimezone(zone)
+    return local.isoformat(timespec="seconds" if local.second else "minutes")
diff --git a/meetings/model.py b/meetings/model.py
--- a/meetings/model.py
+++ b/meetings/model.py
@@ -11,4 +11,4 @@
     end: datetime
 
     def overlaps(self, start, end):
-        return self.start.time() <= end.time() and start.time() <= self.end.time()
+        return self.start < end and start < self.end
diff --git a/meetings/calendar.py b/meetings/calendar.py
--- a/meetings/calendar.py
+++ b/meetings/calendar.py
@@ -39,4 +39,6 @@
 
     def agenda(self, day: date):
         """Titles of the day's meetings."""
-        return [one.title for one in self.meetings if one.start.date() == day]
+        start = datetime.combine(day, time(), self.zone)
+        end = start + timedelta(days=1)
+        return [one.title for one in sorted(self.meetings, key=lambda one: one.start) if one.overlaps(start, end)]
PATCH
