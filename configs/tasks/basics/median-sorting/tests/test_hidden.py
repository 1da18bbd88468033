import pytest
from stats.summary import median, summary


def test_even_count():
    assert median([1, 2, 3, 10]) == 2.5
    assert median([4, 1]) == 2.5


def test_odd_count():
    assert median([9, 1, 5]) == 5
    assert median([7]) == 7


def test_input_keeps_its_order():
    values = [3, 1, 2, 8]
    median(values)
    summary(values)
    assert values == [3, 1, 2, 8]


def test_tuples():
    assert summary((3, 1, 2))["median"] == 2
    assert median((3, 1, 2, 0)) == 1.5


def test_generators():
    result = summary(value * value for value in range(4))
    assert (result["count"], result["median"], result["max"]) == (4, 2.5, 9)


def test_nothing():
    with pytest.raises(ValueError):
        summary([])
    with pytest.raises(ValueError):
        summary(iter(()))


def test_the_rest():
    result = summary([2, 4, 4, 4, 5, 5, 7, 9])
    assert (result["count"], result["mean"], result["min"], result["max"]) == (8, 5.0, 2, 9)
    assert result["spread"] == pytest.approx(2.13809, abs=1e-5)
    assert summary([3])["spread"] == 0.0
