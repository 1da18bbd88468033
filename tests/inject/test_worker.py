"""The search's end of the line: what ends a run of tests by force."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lego.inject.inside


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(lego.inject.inside.__file__).parent))
    yield importlib.import_module("worker")
    for name in ("worker", "run_tests"):
        sys.modules.pop(name, None)


def child(does: Callable[[], object]) -> int:
    """A process in a session of its own, as a run of tests is one."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(told)
            does()
        finally:
            os._exit(0)
    os.close(told)
    os.read(ready, 1)
    os.close(ready)
    return pid


def spin() -> None:
    while True:
        pass


def test_cpu_ends_a_run_and_waiting_does_not(worker):
    assert worker.wait(child(lambda: None), 60.0)
    assert not worker.wait(child(spin), 0.05)
    # A clock's limit, for what waits for ever.
    ready, kept = os.pipe()
    assert not worker.wait(child(lambda: os.read(ready, 1)), 0.02)
    os.close(ready)
    os.close(kept)
