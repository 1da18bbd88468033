"""Faults in the middle of a search for bugs: each stops it with one line, decides nothing, and once it is healed the
same command makes the tasks that it would have made, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lego.config.schema import ImagesSection
from lego.errors import LegoError
from lego.inject import search
from lego.inject.run import Shop, Wanted, inject
from lego.inject.search import Told
from lego.sandbox import reaper
from lego.sandbox.create import Limits
from lego.sandbox.podman import Podman, ServiceLost

pytestmark = pytest.mark.podman

MODULE = """\
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value


def windows(items, size):
    return [items[start : start + size] for start in range(len(items) - size + 1)]
"""
TESTS = """\
import pytest
from counted.core import clamp, windows


@pytest.mark.parametrize("value,want", [(1, 2), (2, 2), (3, 3), (4, 4), (5, 4)])
def test_limits(value, want):
    assert clamp(value, 2, 4) == want


def test_slices():
    assert windows([1, 2, 3], 2) == [[1, 2], [2, 3]]


def test_nothing():
    assert windows([1], 2) == []
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "counted/__init__.py": "", "counted/core.py": MODULE, "tests/test_core.py": TESTS,
    }.items():  # fmt: skip
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text)
    return tmp_path / "project"


def contents(out: Path) -> dict[Path, bytes]:
    return {path.relative_to(out): path.read_bytes() for path in out.glob("*/**/*") if path.is_file()}


def decided(out: Path) -> dict[str, bytes]:
    logs = out.parent.glob(f".{out.name}.inject/*/decisions-1.jsonl")
    lines = [line for log in logs for line in log.read_bytes().splitlines()]
    return {line.split(b'"')[3].decode(): line.partition(b', "seconds"')[0] for line in lines}


def take_container(podman: Podman) -> str:
    """What the host can do to a search's container at any time. Returns its image."""
    mine = f"label={reaper.OWNER}={reaper.Owner.current().tag}"
    told = podman.cli("ps", "--filter", mine, "--format", "{{.ID}} {{.Image}}").stdout.decode().split()
    assert len(told) == 2
    podman.cli("kill", told[0])
    return told[1]


async def test_a_search_goes_on_where_podman_disk_and_image_failed_it(
    podman: Podman, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    async def search_on(strike: Callable[[], object] = lambda: None) -> list[str]:
        """The command once more; `strike` at the first thing that it decides."""
        monkeypatch.setattr(search, "_PAUSES", (0.0,))
        before, left = decided(out), [strike]

        def told(told: Told) -> None:
            if left and told.newest.candidate not in before:
                left.pop()()

        shop = Shop(podman, ImagesSection(), Limits(), out, lambda line: None, told)
        return (await inject(Wanted(str(folder), 5, 1, 1), shop)).tasks

    made = await search_on()
    sound, record = contents(out), decided(out)
    assert len(made) == 5 <= len(record)
    # Once more from the beginning, but for the baseline.
    shutil.rmtree(out)
    next(tmp_path.glob(".out.inject/*/decisions-1.jsonl")).unlink()
    gone: list[str] = []

    def refuse(*_: object, **__: object) -> None:
        raise ServiceLost("the podman service does not answer")

    def podman_dies() -> None:
        take_container(podman)
        monkeypatch.setattr(podman, "request", refuse)

    def disk_is_full() -> None:
        monkeypatch.setattr(podman, "settings", replace(podman.settings, disk_reserve=1 << 50))

    def image_goes() -> None:
        tag = take_container(podman)
        gone.extend((podman.image(tag).id, tag))
        podman.cli("untag", tag)
        podman._images.pop(tag)

    for strike, said in (
        (podman_dies, "does not answer"), (disk_is_full, "free under"), (image_goes, "is not in the store"),
    ):  # fmt: skip
        with pytest.raises(LegoError, match=f"the search for bugs stops: .*{said}") as caught:
            await search_on(strike)
        monkeypatch.undo()
        assert caught.value.fault == "infra" and "the same command goes on" in caught.value.hint
        assert decided(out).items() < record.items()
    podman.cli("tag", *gone)
    # And one whose containers are taken under it, and come up again, goes on by itself.
    assert await search_on(lambda: take_container(podman)) == made
    assert contents(out) == sound and decided(out) == record
