"""Instructions: what fails in words, and never the place."""

from __future__ import annotations

import pytest

from lego.inject.edits import Mutation
from lego.inject.instruct import instruction, names_place
from lego.inject.source import Project

PROJECT = Project("shapes", "1.0", {}, "here", "0", "Areas of things.")
BUG = Mutation("shapes/circles.py", "boundary", 0, 1, b"", (1, 1), "Circle.area_of")
UNEQUAL = {
    "type": "AssertionError", "message": "assert 3 == 4", "compared": ["==", "3", "4"], "given": {}, "line": 2,
    "source": "def test_x():\n    assert total(2) == 4\n", "raised_in_test": True,
}  # fmt: skip


def code(statement):
    return {"source": f"def test_x():\n    {statement}\n"}


def told(*failures, names=("tests/test_x.py::test_large_ones[2]",), bug=BUG):
    pairs = [(names[0], {**UNEQUAL, **failure}) for failure in failures]
    return instruction(PROJECT, bug, pairs, len(pairs))


def test_code_values_and_topic_are_told():
    assert told({}) == (
        "The repository in /app is shapes 1.0 (Areas of things). Something in it is broken: one of its checks fails.\n"
        "\nFor example:\n\n```python\nassert total(2) == 4\n```\n\nA result is `3` and should equal `4`.\n\n"
        "What the failing checks are about: large ones.\n\n"
        "Find the cause in the sources and repair it there; everything that works now must go on working. The checks "
        "that show the fault are not in the repository. The other tests are, and pytest is installed.\n"
    )


ERROR = {"raised_in_test": False, "compared": None}
EQUAL = {**code("self.assertEqual(total(2), total(3))"), "compared": None}
DUE = code("with raises(KeyError): total(2)")


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (code("assert 3 == total(2)"), "A result is `4` and should equal `3`."),
        (code("assert total(2) == total(3)"), "`3` and `4` should be equal."),
        ({"compared": ["==", "'a  b'", "'a b'"]}, "A result is `'a  b'` and should equal `'a b'`."),
        ({"compared": ["in", "3", "[2]"]}, "What should hold comes out as `3 in [2]`."),
        ({**EQUAL, "message": "1 != 2 : so"}, "`1` and `2` should be equal."),
        ({**EQUAL, "message": "'' != 'x'\n+ x"}, "`''` and `'x'` should be equal."),
        ({**EQUAL, "message": "Lists differ: [1] != [2]\n\nFirst"}, "`[1]` and `[2]` should be equal."),
        ({"compared": None, "message": "assert False"}, "What the last statement says does not hold."),
        ({"compared": ["==", "'" + "x" * 400, "4"]}, "What the last statement says does not hold."),
        ({"compared": ["==", "'circles'", "''"]}, "What the last statement says does not hold."),
        ({"compared": ["==", "<object at 0x7f00aabbcc>", "4"]}, "What the last statement says does not hold."),
        ({**DUE, "type": "Failed", "message": "DID NOT RAISE <class 'KeyError'>"}, "No `KeyError` is raised, where"),
        ({"compared": None, "message": "KeyError not raised by total"}, "No `KeyError` is raised, where one is due."),
        (
            {**DUE, "compared": None, "message": "Regex pattern did not match."},
            "is raised does not say what it should.",
        ),
        ({**DUE, "compared": None, "message": 'Regex\n  Expected\n  Actual message: "it\'s"'}, "it should: `it's`."),
        ({**DUE, "compared": None, "message": '"a" does not match "no"'}, "does not say what it should: `no`."),
        ({**ERROR, "type": "TypeError", "message": "no\nlen"}, "`TypeError: no` is raised where no error should be."),
        ({**ERROR, "type": "OSError", "message": "no /tmp/x"}, "`OSError` is raised where no error should be."),
        ({**ERROR, "message": "broken"}, "`AssertionError: broken` is raised where no error should be."),
        ({**ERROR, **DUE, "type": "TypeError", "message": "no"}, "`TypeError: no` is raised in place of the error"),
    ],
)
def test_each_sort_of_failure(failure, said):
    text = told(failure)
    assert text is not None and said in text and "___" not in text


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (code("assert area_of(2) == circles.half(4)"), "assert ___(2) == ___.half(4)\n"),
        (code("assert Circle(2).area == 4"), "assert ___(2).area == 4\n"),
        ({**ERROR, "type": "TypeError", "message": "Circle.area_of() takes 1"}, "`TypeError: ___.___() takes 1` is"),
    ],
)
def test_names_of_the_place_are_left_blank(failure, shown):
    text = told(failure)
    assert text is not None and shown in text
    assert "`___` stands for names that are left out here." in text


def test_a_class_is_known_by_its_words_too():
    bug = Mutation("shapes/circles.py", "boundary", 0, 1, b"", (1, 1), "FlatHTTPCircle.area_of")
    text = told(code("assert flat_http_circle(FlatHTTPCircle()) == 4"), names=("t.py::test_flat_http_circle",), bug=bug)
    assert text is not None and "assert ___(___()) == 4" in text and "about" not in text.replace("checks are", "")
    assert not names_place(text, {"flat_http_circle"})


@pytest.mark.parametrize("failure", [{"source": "", "line": 0}, {**DUE, "type": "Failed", "message": "by hand"}])
def test_what_cannot_be_shown_is_not_told(failure):
    assert told(failure) is None
    both = told(failure, {})
    assert both is not None and both.count("```python") == 1


def test_words_of_every_instruction_tell_nothing():
    """A bug in a function `find` is told, although every instruction begins a sentence with Find."""
    bug = Mutation("shapes/sources.py", "boundary", 0, 1, b"", (1, 1), "find")
    assert told({}, bug=bug) == told({})


def test_a_topic_that_names_the_place_is_left_out():
    text = told({}, names=("tests/test_circles.py::TestCircle::test_area_of_nothing",))
    assert text is not None and "What the failing checks" not in text


def test_words_are_found_whole_and_whatever_their_case():
    assert names_place("see Area_Of", {"area_of"}) and names_place("test_circles", {"circles"})
    assert names_place("TestAreaOf", {"area_of"}) and names_place("area of", {"area_of"})
    assert not names_place("circlesque", {"circles"})
