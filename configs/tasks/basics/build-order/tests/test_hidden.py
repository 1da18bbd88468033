import pytest
from maker.graph import CycleError, order
from maker.plan import stale

DIAMOND = {"app": ["left", "right"], "left": ["base"], "right": ["base"], "base": []}


def test_diamond():
    assert order(DIAMOND) == ["base", "left", "right", "app"]


def test_needed_twice():
    assert order({"a": ["b", "b"], "b": []}) == ["b", "a"]


def test_only_mentioned():
    assert order({"a": ["lib"], "b": ["lib", "sys"]}) == ["lib", "a", "sys", "b"]


def test_given_order_is_kept():
    assert order({"z": [], "a": [], "m": ["q"], "q": []}) == ["z", "a", "q", "m"]
    assert order({}) == []


def check_cycle(needs):
    with pytest.raises(CycleError) as caught:
        order(needs)
    path = caught.value.path
    assert path[0] == path[-1] and len(path) >= 2
    assert len(set(path)) == len(path) - 1
    for target, needed in zip(path, path[1:]):
        assert needed in needs[target]
    return path


def test_needs_itself():
    assert check_cycle({"a": [], "b": ["b"]}) == ["b", "b"]


def test_longer_cycle():
    assert set(check_cycle({"a": ["b"], "b": ["c"], "c": ["d", "b"], "d": []})) == {"b", "c"}


def test_cycle_of_three():
    assert set(check_cycle({"start": ["x"], "x": ["y"], "y": ["z"], "z": ["x"]})) == {"x", "y", "z"}


def test_deep_chain():
    needs = {f"t{number}": [f"t{number + 1}"] for number in range(5000)}
    result = order(needs)
    assert len(result) == 5001 and result[0] == "t5000" and result[-1] == "t0"


def test_input_is_left_alone():
    needs = {"a": ["lib"], "b": ["a"]}
    order(needs)
    assert needs == {"a": ["lib"], "b": ["a"]}


def test_stale():
    assert stale(DIAMOND, {"left"}) == ["left", "app"]
    assert stale(DIAMOND, {"base"}) == ["base", "left", "right", "app"]
    assert stale({"a": ["lib"], "b": ["a"], "c": []}, {"lib"}) == ["lib", "a", "b"]
    assert stale(DIAMOND, set()) == []
