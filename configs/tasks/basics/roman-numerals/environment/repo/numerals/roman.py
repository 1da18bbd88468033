"""Roman numerals, 1 to 3999."""

_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_STEPS = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
    (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)


def to_roman(number):
    if not 1 <= number <= 3999:
        raise ValueError(f"no Roman numeral for {number}")
    text = ""
    for value, letters in _STEPS:
        while number >= value:
            text += letters
            number -= value
    return text


def from_roman(text):
    letters = text.strip().upper()
    if not letters:
        raise ValueError("empty numeral")
    total = 0
    for letter in letters:
        if letter not in _VALUES:
            raise ValueError(f"not a Roman numeral: {text!r}")
        total += _VALUES[letter]
    return total
