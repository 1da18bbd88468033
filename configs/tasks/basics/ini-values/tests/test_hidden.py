import pytest
from settings.reader import SettingsError, parse


def test_equals_sign_in_value():
    assert parse("url = http://x/?a=1&b=2")[""] == {"url": "http://x/?a=1&b=2"}


def test_hash_in_value():
    assert parse("color = #ff0000")[""] == {"color": "#ff0000"}
    assert parse("channel = a#b")[""] == {"channel": "a#b"}


def test_comments():
    text = "# first\n   # indented\nport = 80   # the usual\nhost = h\t# tab\n[net] # section\nx = 1"
    assert parse(text) == {"": {"port": "80", "host": "h"}, "net": {"x": "1"}}


def test_sections_are_continued():
    text = "[a]\nx = 1\nw = 0\n[b]\ny = 2\n[a]\nz = 3\nx = 4"
    assert parse(text) == {"": {}, "a": {"x": "4", "w": "0", "z": "3"}, "b": {"y": "2"}}


def test_quotes():
    text = 'a = "  spaced  "\nb = "with # hash" # comment\nc = ""\nd = "x = y"'
    assert parse(text)[""] == {"a": "  spaced  ", "b": "with # hash", "c": "", "d": "x = y"}


def test_empty_value():
    assert parse("a =\nb = ")[""] == {"a": "", "b": ""}


def test_line_numbers():
    for text, line in (("nonsense", 1), ("a = 1\n\n[open", 3), ("# c\n= 5", 2)):
        with pytest.raises(SettingsError, match=f"line {line}:") as caught:
            parse(text)
        assert caught.value.line == line


def test_plain_files_still_work():
    assert parse("") == {"": {}}
    assert parse("a = 1\n[s]\n  b=two words  ") == {"": {"a": "1"}, "s": {"b": "two words"}}
