"""Instructions: what fails in words, and never the place."""

from __future__ import annotations

import pytest

from lego.inject.edits import Mutation
from lego.inject.instruct import instruction, names_place
from lego.inject.source import Project

PROJECT = Project("shapes", "1.0", {}, "here", "0", "Areas of things.")
BUG = Mutation("shapes/circles.py", "boundary", 0, 1, b"", (1, 1), "Circle.area_of")
UNEQUAL = {"type": "AssertionError", "message": "assert 3 == 4", "compared": ["==", "3", "4"], "statement": ""}


def told(*failures, names=("tests/test_x.py::test_large_ones[2]",)):
    pairs = [(names[0], {**UNEQUAL, **failure}) for failure in failures]
    return instruction(PROJECT, BUG, pairs, len(pairs))


def test_values_and_topic_are_told():
    text = told({})
    assert text is not None
    assert "- a result is `3` and should equal `4`" in text
    assert "about: large ones." in text and "shapes 1.0 (Areas of things)" in text


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ({"statement": "assert total(2) == 4"}, "at `assert total(2) == 4`, a result is `3` and should equal `4`"),
        ({"statement": "assert area_of(2) == 4"}, "- a result is `3` and should equal `4`"),
        ({"compared": ["<", "3", "2"]}, "a result is `3`, for which `< 2` should hold"),
        ({"compared": None, "message": "1 != 2"}, "`1` and `2` should be equal"),
        ({"type": "Failed", "message": "DID NOT RAISE <class 'KeyError'>"}, "no `KeyError` is raised where one is due"),
        ({"compared": None, "message": "KeyError not raised"}, "no `KeyError` is raised where one is due"),
        ({"type": "TypeError", "message": "no len"}, "`TypeError: no len` is raised where no error should be"),
    ],
)
def test_each_sort_of_failure(failure, said):
    text = told(failure)
    assert text is not None and said in text


@pytest.mark.parametrize(
    "failure",
    [
        {"type": "TypeError", "message": "area_of() takes 1 argument"},
        {"compared": ["==", "'circles'", "''"]},
        {"compared": ["==", "<Circle>", "None"]},
        {"compared": ["==", "<object at 0x7f00aabbcc>", "None"]},
        {"type": "OSError", "message": "no /tmp/x"},
    ],
)
def test_what_tells_the_place_or_changes_each_time_is_not_said(failure):
    assert told(failure) is None
    both = told(failure, {})
    assert both is not None and both.count("\n- ") == 1


def test_a_topic_that_names_the_place_is_left_out():
    text = told({}, names=("tests/test_circles.py::TestCircle::test_area_of_nothing",))
    assert text is not None and "about" not in text.replace("what the failing", "")


def test_words_are_found_whole_and_whatever_their_case():
    assert names_place("see Area_Of", {"area_of"}) and names_place("test_circles", {"circles"})
    assert not names_place("circlesque", {"circles"})
