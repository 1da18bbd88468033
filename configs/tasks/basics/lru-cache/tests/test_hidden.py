import pytest
from cache import LruCache


def filled(capacity=3, **options):
    cache = LruCache(capacity, **options)
    for key in "abc"[:capacity]:
        cache.put(key, key.upper())
    return cache


def test_reading_counts_as_use():
    cache = filled()
    assert cache.get("a") == "A"
    cache.put("d", "D")
    assert cache.keys() == ["c", "a", "d"]


def test_storing_again_counts_as_use():
    cache = LruCache(3)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    assert cache.keys() == ["b", "a"]
    assert cache.get("a") == 3


def test_storing_again_evicts_nothing():
    gone = []
    cache = filled(on_evict=lambda key, value: gone.append((key, value)))
    cache.put("b", "new")
    assert gone == [] and len(cache) == 3
    cache.put("d", "D")
    assert gone == [("a", "A")]


def test_none_is_a_value():
    cache = LruCache(2)
    cache.put("n", None)
    assert cache.get("n", "default") is None
    assert (cache.hits, cache.misses) == (1, 0)


def test_misses():
    cache = filled()
    assert cache.get("z") is None
    assert cache.get("z", 5) == 5
    assert (cache.hits, cache.misses) == (0, 2)
    assert "z" not in cache and len(cache) == 3


def test_peek_is_no_use():
    cache = filled()
    assert cache.peek("a") == "A"
    cache.put("d", "D")
    assert "a" not in cache
    assert (cache.hits, cache.misses) == (0, 0)


def test_capacity_one():
    cache = LruCache(1)
    cache.put("a", 1)
    cache.put("a", 2)
    cache.put("b", 3)
    assert cache.keys() == ["b"]
    with pytest.raises(ValueError):
        LruCache(0)
