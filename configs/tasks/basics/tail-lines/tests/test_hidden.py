import builtins

from logview import tail as module
from logview.filter import recent
from logview.tail import tail


def written(tmp_path, data):
    path = tmp_path / "log.txt"
    path.write_bytes(data)
    return str(path)


def test_final_line_break(tmp_path):
    path = written(tmp_path, b"one\ntwo\nthree\n")
    assert tail(path, 2) == ["two", "three"]
    assert tail(path, 1) == ["three"]


def test_no_final_line_break(tmp_path):
    assert tail(written(tmp_path, b"one\ntwo\nthree"), 2) == ["two", "three"]


def test_fewer_lines_than_asked(tmp_path):
    assert tail(written(tmp_path, b"one\ntwo\n"), 10) == ["one", "two"]
    assert tail(written(tmp_path, b"one"), 10) == ["one"]
    assert tail(written(tmp_path, b""), 3) == []


def test_nothing_asked(tmp_path):
    assert tail(written(tmp_path, b"one\ntwo\n"), 0) == []


def test_every_block_size(tmp_path):
    lines = ["", "é", "naïve ☃ text", "x" * 30, "", "last €"]
    for end in ("\n", ""):
        path = written(tmp_path, ("\n".join(lines) + end).encode())
        for block in range(1, 70):
            for n in range(1, 8):
                assert tail(path, n, block=block) == lines[-n:], (block, n, end)


def test_blank_lines_count(tmp_path):
    assert tail(written(tmp_path, b"a\n\n\n"), 2) == ["", ""]


def test_windows_line_ends(tmp_path):
    path = written(tmp_path, b"one\r\ntwo\r\nthree\r\n")
    for block in (1, 2, 3, 5, 100):
        assert tail(path, 2, block=block) == ["two", "three"]


def test_bytes_that_are_no_text(tmp_path):
    assert tail(written(tmp_path, b"ok\nbad \xff byte\n"), 1) == ["bad \ufffd byte"]


def test_reads_no_more_than_needed(tmp_path, monkeypatch):
    path = written(tmp_path, b"a line of text\n" * 100_000)
    total = 0

    class Counting:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *rest):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def read(self, *size):
            nonlocal total
            data = self.file.read(*size)
            total += len(data)
            return data

    real = builtins.open
    monkeypatch.setattr(module, "open", lambda *a, **k: Counting(real(*a, **k)), raising=False)
    assert tail(path, 3) == ["a line of text"] * 3
    assert 0 < total < 20_000


def test_recent(tmp_path):
    path = written(tmp_path, b"1 ERROR old\n2 INFO a\n3 DEBUG b\n\n4 WARNING c\n5 ERROR d\n")
    assert recent(path, 5) == ["2 INFO a", "4 WARNING c", "5 ERROR d"]
    assert recent(path, 5, "ERROR") == ["5 ERROR d"]
