"""A bounded cache that forgets the least recently used entry."""


class LruCache:
    """At most `capacity` entries. `hits` and `misses` count what `get` found; `on_evict` hears what is forgotten."""

    def __init__(self, capacity, on_evict=None):
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self.on_evict = on_evict
        self.hits = 0
        self.misses = 0
        self._entries = {}

    def __len__(self):
        return len(self._entries)

    def __contains__(self, key):
        return key in self._entries

    def keys(self):
        """Least recently used first."""
        return list(self._entries)

    def get(self, key, default=None):
        value = self._entries.get(key)
        if value is None:
            self.misses += 1
            return default
        self.hits += 1
        return value

    def peek(self, key, default=None):
        """Look without counting as a use, a hit or a miss."""
        return self._entries.get(key, default)

    def put(self, key, value):
        if len(self._entries) >= self.capacity:
            oldest = next(iter(self._entries))
            dropped = self._entries.pop(oldest)
            if self.on_evict:
                self.on_evict(oldest, dropped)
        self._entries[key] = value
