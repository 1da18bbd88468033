"""The view of image builds: rendered at several widths, and as plain lines."""

from __future__ import annotations

import io
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from rich.console import Console

from lego.images.build import ImageEvent, ImageResult, OnEvent, Stage, Status
from lego.images.plan import ImageJob
from stages._building import View, Works, build_with_progress, live


class Scene:
    """Events of a build of 40 images, with logs."""

    def __init__(self, folder: Path, note: OnEvent) -> None:
        self._folder, self._note = folder, note

    def event(self, name: str, stage: Stage, *, kind: str = "task", log: str = "", result: ImageResult | None = None):
        path = self._folder / f"{name.split()[0]}.log"
        if log:
            path.write_bytes(log.encode())
        self._note(ImageEvent(ImageJob(kind, name, "t", name), stage, 40, path, result))  # type: ignore[arg-type]

    def ended(self, name: str, status: Status, reason: str = "") -> None:
        path = self._folder / f"{name}.log"
        self.event(name, "end", result=ImageResult(name, "t", "task", name, status, path, 1.0, reason=reason))


@pytest.fixture
def works() -> Works:
    now = iter([0.0, 3.0, 10.0, 60.0, 75.0])
    made = Works(lambda: next(now, 3700.0))
    return made


def drawn(works: Works, width: int, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(View(works))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture
def scene(works: Works, tmp_path: Path) -> Scene:
    made = Scene(tmp_path, works.note)
    made.ended("old", "cached")
    made.ended("new", "built")
    made.ended("bad", "failed", "exit status 9")
    for name, stage, kind, log in (
        ("lru-cache", "build", "task", "STEP 3/7: WORKDIR /app\nSTEP 4/7: RUN pip install\n\n"),
        ("django__django-12345 and 3 more", "build", "task", "\x1b[32mCollecting\x1b[0m [b]asgiref\x07 " + "x" * 200),
        ("claude-code", "build", "runtime", "fetching\r50%\r60%\n"),
        ("held", "wait", "task", "a log of the day before\n"),
    ):
        made.event(name, "look", kind=kind)
        made.event(name, stage, kind=kind, log=log)  # type: ignore[arg-type]
    return made


def test_what_is_built_stands_beside_its_last_words(works: Works, scene: Scene) -> None:
    head, lru, django, claude, held = drawn(works, 120)
    assert head.split() == [
        "images", head.split()[1], "3/40", "built", "1", "·", "cached", "1", "·", "failed", "1", "1:01:40",
    ]  # fmt: skip
    assert lru.split(maxsplit=3) == ["task", "lru-cache", "1:01:37", "STEP 4/7: RUN pip install"]
    assert "Collecting [b]asgiref\N{REPLACEMENT CHARACTER} xxx" in django and django.endswith("…")
    assert claude.split() == ["runtime", "claude-code", "1:00:40", "60%"]
    assert held.split(maxsplit=3)[3] == "another process builds it", "an older log says nothing of now"
    scene.ended("lru-cache", "built")
    assert len(drawn(works, 120)) == 4 and "built 2" in drawn(works, 120)[0]


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 120, 200])
def test_it_keeps_to_the_terminal(works: Works, scene: Scene, width: int) -> None:
    lines = drawn(works, width)
    assert len(lines) == 5 and all(len(line) <= width for line in lines)
    assert lines[0].split()[0 if width < 64 else 2] == "3/40"
    if width >= 40:
        assert all(name in line for name, line in zip(("lru-cache", "django", "clau", "held"), lines[1:], strict=True))


def test_a_low_terminal_shows_how_many_more_there_are(works: Works, scene: Scene) -> None:
    lines = drawn(works, 80, height=5)
    assert len(lines) == 4 and lines[-1] == " … and 2 more"


def test_a_failure_stays_with_its_log_and_the_view_does_not(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with live(out) as note:
        scene = Scene(tmp_path, note)
        scene.event("bad", "build", log="STEP 1/2\n")
        scene.ended("bad", "failed", "exit\nstatus [9]")
    said = out.getvalue()
    assert " task image bad failed: exit status [9]" in said and f"   log: {tmp_path}/bad.log" in said
    assert said.endswith("\x1b[?25h") or "\x1b[2K" in said.rpartition("bad.log")[2], "the view is wiped away"


@pytest.mark.parametrize("terminal", [False, True])
async def test_plain_lines_off_a_terminal_and_where_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    async def build(note: OnEvent) -> list[ImageResult]:
        scene = Scene(tmp_path, note)
        scene.event("good", "build", log="STEP 1/2\n")
        scene.ended("bad", "failed", "exit status 9")
        return []

    run: Callable[..., Awaitable[list[ImageResult]]] = build_with_progress
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    await run(build, plain=terminal)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f" task image bad failed: exit status 9\n   log: {tmp_path}/bad.log\n"
