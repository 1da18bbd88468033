import csv
import io

import pytest
from export.writer import format_cell, format_rows


def back(text):
    return list(csv.reader(io.StringIO(text, newline="")))


def test_quotes_are_doubled():
    assert format_cell('a 3" pipe') == '"a 3"" pipe"'


def test_line_breaks_are_quoted():
    assert format_cell("two\nlines") == '"two\nlines"'
    assert format_cell("carriage\rreturn") == '"carriage\rreturn"'


def test_quote_and_comma_together():
    assert format_cell('say "hi", then go') == '"say ""hi"", then go"'


def test_plain_cells_stay_plain():
    assert [format_cell(one) for one in ("plain", 7, 1.5, None, "it's", "")] == ["plain", "7", "1.5", "", "it's", ""]


def test_round_trip():
    rows = [['say "hi", you', "x\ny"], ["", '"'], ["a,b", "c\r\nd"], ['""', ","]]
    assert back(format_rows(["name", 'no"te'], rows)) == [["name", 'no"te'], *rows]


def test_line_ends():
    assert format_rows(["a", "b"], [[1, 2]]) == "a,b\r\n1,2\r\n"


def test_wrong_width_is_refused():
    with pytest.raises(ValueError, match="row 2"):
        format_rows(["a", "b"], [[1, 2], [3]])
