import pytest
from numerals.roman import from_roman, to_roman


def test_subtractive_pairs():
    assert from_roman("MCMXCIV") == 1994
    assert [from_roman(text) for text in ("IV", "IX", "XL", "XC", "CD", "CM")] == [4, 9, 40, 90, 400, 900]


def test_round_trip():
    for number in range(1, 4000):
        assert from_roman(to_roman(number)) == number


def test_lower_case_and_spaces():
    assert from_roman(" mmxxiv ") == 2024


def test_improper_numerals_are_refused():
    for text in ("IIII", "VX", "IC", "VV", "IXI", "XM", "IIX", "MMMM", "CMC", "LL"):
        with pytest.raises(ValueError):
            from_roman(text)


def test_other_text_is_refused():
    for text in ("", "  ", "ABC", "X1", "-X"):
        with pytest.raises(ValueError):
            from_roman(text)


def test_writing():
    assert to_roman(3999) == "MMMCMXCIX"
    for number in (0, -1, 4000):
        with pytest.raises(ValueError):
            to_roman(number)
