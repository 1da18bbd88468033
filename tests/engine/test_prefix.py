from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lego.engine.prefix import Prefix, PrefixStore, common_length

IDS = st.lists(st.integers(0, 1), max_size=6)
PUTS = st.lists(st.tuples(st.sampled_from("ab"), IDS), max_size=12)


def array(ids: list[int]) -> np.ndarray:
    return np.asarray(ids, np.int32)


def filled(puts: list[tuple[str, list[int]]], budget: int) -> PrefixStore[int]:
    store: PrefixStore[int] = PrefixStore(budget)
    for number, (session, ids) in enumerate(puts):
        store.put(Prefix(session, array(ids), number, max(len(ids), 1)))
    return store


@given(IDS, IDS)
def test_common_length_is_the_longest_shared_start(a: list[int], b: list[int]) -> None:
    n = common_length(array(a), array(b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(PUTS, st.integers(1, 20))
def test_never_over_budget(puts: list[tuple[str, list[int]]], budget: int) -> None:
    store = filled(puts, budget)
    assert 0 <= store.nbytes <= budget
    assert store.nbytes >= len(store)


@given(PUTS, IDS)
def test_longest_finds_the_best_of_all_sessions(puts: list[tuple[str, list[int]]], wanted: list[int]) -> None:
    prefix, shared = filled(puts, 10**6).longest(array(wanted))
    best = max((common_length(array(ids), array(wanted)) for _, ids in puts), default=0)
    assert shared == best
    assert (prefix is None) == (best == 0)


@given(PUTS, IDS, st.sampled_from("ab"))
def test_take_gives_a_whole_proper_prefix_of_the_session_once(
    puts: list[tuple[str, list[int]]], wanted: list[int], session: str
) -> None:
    store = filled(puts, 10**6)
    own = [ids for s, ids in puts if s == session]
    kept = [ids for n, ids in enumerate(own) if not any(later[: len(ids)] == ids for later in own[n + 1 :])]
    whole = [len(ids) for ids in kept if 0 < len(ids) < len(wanted) and wanted[: len(ids)] == ids]
    before = len(store)
    taken = store.take(array(wanted), session)
    assert (0 if taken is None else len(taken.ids)) == max(whole, default=0)
    assert len(store) == before - (taken is not None)


def test_a_longer_prefix_replaces_the_shorter_one_of_its_session() -> None:
    store = filled([("a", [1, 0]), ("b", [1, 0]), ("a", [1, 0, 1])], 100)
    assert len(store) == 2
    assert store.nbytes == 5


def test_the_least_recently_used_goes_first() -> None:
    store = filled([("a", [0, 0]), ("b", [1, 1])], 4)
    store.longest(array([0, 0, 1]))
    store.put(Prefix("c", array([0, 1]), 9, 2))
    assert store.longest(array([1, 1]))[1] == 0
    assert store.longest(array([0, 0]))[1] == 2


def test_what_exceeds_the_budget_is_not_kept() -> None:
    assert len(filled([("a", [1] * 6)], 5)) == 0


def test_an_ended_session_leaves_nothing() -> None:
    store = filled([("a", [1]), ("b", [0])], 100)
    store.drop_session("a")
    assert store.longest(array([1]))[0] is None
    assert store.nbytes == 1
