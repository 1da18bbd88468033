"""What is shown of a failing test: it up to what failed, or, of a long one, what that looks at."""

from __future__ import annotations

import textwrap

import pytest

from lego.inject.shown import Shown, shown

LONG = "".join(f"    unrelated({number})\n" for number in range(20))


def told(source, given=None):
    """`source` with the failing line marked by `#!`."""
    source = textwrap.dedent(source).lstrip("\n")
    line = next(number for number, row in enumerate(source.splitlines(), 1) if "#!" in row)
    return shown(source.replace("  #!", ""), line, given or {})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # What made the values, what changed them, and nothing else.
        (
            """
            def test_queue():
                other = [1]
                queue = deque()
                queue.append(3)
                other.append(2)
                assert other == [1, 2]
                assert queue.pop() == 4  #!
                queue.append(5)
            """,
            "queue = deque()\nqueue.append(3)\nassert queue.pop() == 4",
        ),
        # An older value of the same name is of no interest.
        (
            """
            def test_twice():
                x = one()
                assert x
                x = two()
                x += 1
                assert x == 3  #!
            """,
            "x = two()\nx += 1\nassert x == 3",
        ),
        # Inside blocks: their first lines, and what these look at.
        (
            """
            @mark
            def test_all():
                names = ["a"]
                for name in names:
                    if name:
                        got = f(
                            name,
                        )
                        assert got == name  #!
            """,
            'names = ["a"]\nfor name in names:\n    if name:\n        got = f(\n            name,\n        )\n'
            "        assert got == name",
        ),
        # Functions and classes of the test's own.
        (
            """
            def test_wrapped():
                @wraps
                def inner(a):
                    return a
                class Other:
                    pass
                assert inner(1) == 2  #!
            """,
            "@wraps\ndef inner(a):\n    return a\nassert inner(1) == 2",
        ),
    ],
)
def test_of_a_long_test_the_statements_that_matter(source, text):
    source = textwrap.dedent(source).replace("():\n", f"():\n{LONG}", 1)
    found = told(source)
    assert found is not None and found.text == f"# ...\n{text}"


def test_a_short_test_is_shown_up_to_where_it_fails():
    found = told(
        """
        @mark
        def test_queue():
            '''Whatever.'''
            queue = deque()

            assert not queue
            for one in queue:
                assert one  #!
                queue.append(5)
        """
    )
    text = "'''Whatever.'''\nqueue = deque()\n\nassert not queue\nfor one in queue:\n    assert one"
    assert found == Shown(text)


def test_a_block_that_fails_at_its_beginning():
    found = told("def t():\n    with f(1) as g:  #!\n        g.h()\n")
    assert found == Shown("with f(1) as g:\n    ...")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("def t():\n    with pytest.raises(KeyError):  #!\n        f(1)\n", "with pytest.raises(KeyError):\n    f(1)"),
        ("def t():\n    with pytest.raises(KeyError):\n        f(1)  #!\n", "with pytest.raises(KeyError):\n    f(1)"),
        ("def t(self):\n    self.assertRaises(KeyError, f, 1)  #!\n", "self.assertRaises(KeyError, f, 1)"),
        (
            "def t():\n    with raises(KeyError) as found:\n        f(1)\n    assert found.value.args == (1,)  #!\n",
            "with raises(KeyError) as found:\n    f(1)\nassert found.value.args == (1,)",
        ),
    ],
)
def test_errors_that_are_due(source, text):
    found = told(source)
    assert found is not None and (found.text, found.raises) == (text, "assert" not in text.splitlines()[-1][:6])


def test_parameters_as_far_as_python_can_say_them():
    source = "def t(a, b, c):\n    assert f(a, b) == 1  #!\n"
    found = told(source, {"a": "[1, 2]", "b": "<object object at 0x7f>", "c": "3"})
    assert found == Shown("a = [1, 2]\nassert f(a, b) == 1", expected="right")


@pytest.mark.parametrize(
    ("test", "side"),
    [
        ("f(x) == {'a': [-1, 2 ** 3]}", "right"),
        ("(1, 2) == f(x)", "left"),
        ("given == f(x)", "left"),
        ("f(x) == expected_text", "right"),
        ("f(x) == g(x)", ""),
        ("given == [1]", ""),
        ("f(x) in [1]", ""),
        ("1 == f(x) == 1", ""),
        ("self.assertEqual(f(x), 1, 'why')", "right"),
        ("self.assertEqual(1, f(x))", "left"),
        ("self.assertIn(1, f(x))", ""),
    ],
)
def test_which_side_is_the_expected_one(test, side):
    statement = test if test.startswith("self") else f"assert {test}"
    found = told(f"def t(given):\n    {statement}  #!\n", {"given": "[1]"})
    assert found is not None and found.expected == side


def test_long_preparations_are_cut_from_the_front():
    rows = [f"    x.append({number})" for number in range(40)]
    found = told("\n".join(["def t():", "    x = []", *rows, "    assert x == 1  #!"]))
    assert found is not None and len(found.text.splitlines()) == 21
    assert found.text.startswith("# ...\nx.append(21)\n") and found.text.endswith("x.append(39)\nassert x == 1")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("", 1),
        ("assert f(", 1),
        ("x = [f(y) for y in z]", 1),
        ("def t():\n    assert f()\n", 9),
        ("def t():\n    assert f('" + "x" * 200 + "')\n", 2),
        ("def t():\n    assert f(\n" + "        1,\n" * 21 + "    )\n", 3),
        ("def t():\n    try:\n        f()\n    except KeyError:\n        assert g()\n", 5),
    ],
)
def test_what_cannot_be_shown(source, line):
    assert shown(source, line, {}) is None
