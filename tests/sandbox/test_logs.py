from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lego.sandbox.logs import LogTail, Stream

STAMP = b"2026-01-01T00:00:00.000000000+00:00"
streams: st.SearchStrategy[Stream] = st.sampled_from(["stdout", "stderr"])
lines = st.tuples(streams, st.booleans(), st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")))


def written(line: tuple[Stream, bool, bytes]) -> bytes:
    stream, full, content = line
    return STAMP + b" " + stream.encode() + (b" F " if full else b" P ") + content + b"\n"


@given(st.lists(lines, max_size=20), st.lists(st.integers(0, 2000), max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_the_cuts_the_streams_come_out_whole(
    tmp_path: Path, lines: list[tuple[Stream, bool, bytes]], cuts: list[int]
) -> None:
    path = tmp_path / "log"
    data = b"".join(map(written, lines))
    heard: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def on_output(stream: Stream, content: bytes) -> None:
        heard[stream] += content

    tail = LogTail(path, 10_000, on_output)
    for cut in sorted(cuts):
        path.write_bytes(data[:cut])
        tail.poll()
    path.write_bytes(data)
    tail.poll(to_end=True)
    for stream in ("stdout", "stderr"):
        want = b"".join(content + (b"\n" if full else b"") for name, full, content in lines if name == stream)
        assert tail.output(stream) == heard[stream] == want
    assert tail.dropped == 0


def test_the_middle_goes_when_there_is_too_much(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path, 10)
    path.write_bytes(written(("stdout", True, b"abcdefghij")) + written(("stdout", True, b"klmnopqrs")))
    tail.poll(to_end=True)
    assert (tail.output("stdout"), tail.dropped) == (b"abcdepqrs\n", 11)


def test_a_log_started_over_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path, 100)
    tail.poll()
    path.write_bytes(written(("stdout", True, b"long first line")))
    tail.poll()
    path.write_bytes(written(("stdout", True, b"new")))
    tail.poll()
    assert tail.output("stdout") == b"long first line\nnew\n"
