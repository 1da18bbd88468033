"""One token bucket."""


class Bucket:
    """Holds at most `capacity` tokens and grows by `rate` tokens a second; starts full."""

    def __init__(self, capacity, rate, now):
        self.capacity = capacity
        self.rate = rate
        self.tokens = capacity
        self.updated = now

    def refill(self, now):
        self.tokens += int((now - self.updated) * self.rate)
        self.updated = now

    def take(self, cost, now):
        self.refill(now)
        if self.tokens >= cost:
            self.tokens -= cost
            return True
        return False

    def wait(self, cost, now):
        """Seconds until `cost` tokens are there."""
        self.refill(now)
        return (cost - self.tokens) / self.rate
