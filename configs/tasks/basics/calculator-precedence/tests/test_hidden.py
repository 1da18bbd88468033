import random

import pytest
from calc import CalcError, evaluate


def test_subtraction_binds_to_the_left():
    assert evaluate("10 - 4 - 3") == 3
    assert evaluate("1 - 2 + 3 - 4") == -2


def test_power_binds_to_the_right():
    assert evaluate("2 ^ 3 ^ 2") == 512


def test_power_before_minus():
    assert evaluate("-2 ^ 2") == -4
    assert evaluate("(-2) ^ 2") == 4


def test_minus_anywhere():
    assert evaluate("2 * -3") == -6
    assert evaluate("2 ^ -1") == 0.5
    assert evaluate("4 - -(1 + 2)") == 7
    assert evaluate("--5") == 5


def test_division():
    assert evaluate("12 / 3 / 2") == 2
    for text in ("1 / 0", "1 / (2 - 2)", "0 ^ -1"):
        with pytest.raises(CalcError):
            evaluate(text)


def test_broken_input():
    for text in ("", "1 +", "2 * ", "(1 + 2", "1 2", "1 + 2)", "()", "* 3", "2 $ 3", "1 (2)"):
        with pytest.raises(CalcError):
            evaluate(text)


def test_numbers():
    assert evaluate(" 1.5 + .5 ") == 2
    assert evaluate("3.") == 3


def test_against_python():
    dice = random.Random(3)

    def expression(depth):
        if depth == 0:
            return str(dice.randint(1, 9))
        left, right = expression(depth - 1), expression(depth - 1)
        text = f"{left} {dice.choice('+-*')} {right}"
        return f"({text})" if dice.random() < 0.4 else text

    for _ in range(200):
        text = expression(3)
        assert evaluate(text) == eval(text)
