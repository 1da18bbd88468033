"""A limiter with a bucket for every client."""

import time

from limits.bucket import Bucket


class Limiter:
    def __init__(self, capacity, rate, clock=time.monotonic):
        self.capacity = capacity
        self.rate = rate
        self.clock = clock
        self.buckets = {}

    def _bucket(self, client):
        now = self.clock()
        return self.buckets.setdefault("client", Bucket(self.capacity, self.rate, now)), now

    def allow(self, client, cost=1):
        bucket, now = self._bucket(client)
        return bucket.take(cost, now)

    def retry_after(self, client, cost=1):
        bucket, now = self._bucket(client)
        return bucket.wait(cost, now)
