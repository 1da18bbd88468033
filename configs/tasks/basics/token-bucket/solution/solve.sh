#!/bin/sh
set -e
cd "${APP:-/app}"
git apply - <<'PATCH'
diff --git a/limits/bucket.py b/limits/bucket.py
--- a/limits/bucket.py
+++ b/limits/bucket.py
@@ -11,8 +11,9 @@
         self.updated = now
 
     def refill(self, now):
-        self.tokens += int((now - self.updated) * self.rate)
-        self.updated = now
+        passed = max(0.0, now - self.updated)
+        self.tokens = min(self.capacity, self.tokens + passed * self.rate)
+        self.updated = max(self.updated, now)
 
     def take(self, cost, now):
         self.refill(now)
@@ -24,4 +25,4 @@
     def wait(self, cost, now):
         """Seconds until `cost` tokens are there."""
         self.refill(now)
-        return (cost - self.tokens) / self.rate
+        return max(0.0, (cost - self.tokens) / self.rate)
diff --git a/limits/limiter.py b/limits/limiter.py
--- a/limits/limiter.py
+++ b/limits/limiter.py
@@ -14,12 +14,20 @@
 
     def _bucket(self, client):
         now = self.clock()
-        return self.buckets.setdefault("client", Bucket(self.capacity, self.rate, now)), now
+        if client not in self.buckets:
+            self.buckets[client] = Bucket(self.capacity, self.rate, now)
+        return self.buckets[client], now
+
+    def _check(self, cost):
+        if cost > self.capacity:
+            raise ValueError(f"a cost of {cost} can never be granted: the capacity is {self.capacity}")
 
     def allow(self, client, cost=1):
+        self._check(cost)
         bucket, now = self._bucket(client)
         return bucket.take(cost, now)
 
     def retry_after(self, client, cost=1):
+        self._check(cost)
         bucket, now = self._bucket(client)
         return bucket.wait(cost, now)
PATCH
