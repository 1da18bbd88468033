"""The end of a file, without reading all of it."""

import os

BLOCK = 4096


def tail(path, n, block=BLOCK):
    """The last `n` lines of a text file."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        text = ""
        while end > 0 and text.count("\n") < n:
            start = max(0, end - block)
            file.seek(start)
            text = file.read(end - start).decode("utf-8", "ignore") + text
            end = start
        return text.split("\n")[-n:]
