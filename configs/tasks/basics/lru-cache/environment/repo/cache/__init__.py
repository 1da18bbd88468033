from cache.lru import LruCache

__all__ = ["LruCache"]
