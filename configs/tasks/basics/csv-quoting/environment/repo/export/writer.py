"""CSV as our customers' spreadsheets want it: comma separated, CRLF line ends."""

SEPARATOR = ","
LINE_END = "\r\n"


def format_cell(value):
    """The text of one cell; None is an empty cell."""
    if value is None:
        return ""
    text = str(value)
    if SEPARATOR in text:
        return f'"{text}"'
    return text


def format_rows(header, rows):
    """The whole file as text. Raises ValueError where a row has not as many cells as the header."""
    lines = [SEPARATOR.join(format_cell(name) for name in header)]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells, not {len(header)}")
        lines.append(SEPARATOR.join(format_cell(value) for value in row))
    return LINE_END.join(lines) + LINE_END
