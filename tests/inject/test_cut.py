"""Tests taken out of test files, and everything else left as it was."""

from __future__ import annotations

from lego.inject.cut import without

SOURCE = b"""\
import pytest


def test_a():
    assert 1


@pytest.mark.parametrize(
    "x", [1, 2]
)
def test_b(x):
    assert x


class TestC:
    # kept
    def test_d(self):
        assert 1

    def test_e(self):
        assert 2


class TestF:
    def test_d(self):
        assert 3
"""


def test_functions_go_with_their_decorators():
    left = without("t.py", SOURCE, {"test_b", "TestC::test_d"})
    assert left is not None
    assert b"parametrize" not in left and b"assert 1\n\n    def test_e" not in left
    assert left == SOURCE.replace(SOURCE[SOURCE.index(b"@pytest") : SOURCE.index(b"\n\nclass TestC")], b"").replace(
        b"    def test_d(self):\n        assert 1\n", b""
    )


def test_an_empty_class_keeps_a_pass():
    left = without("t.py", SOURCE, {"TestF::test_d"})
    assert left is not None and left.endswith(b"class TestF:\n    pass\n")


def test_what_is_not_there_cannot_be_cut():
    assert without("t.py", SOURCE, {"test_z"}) is None
    assert without("t.py", b"def broken(:\n", {"test_a"}) is None
