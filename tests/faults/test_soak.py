"""A small soak in the suite; `python -m benchmarks.soak` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import soak


@pytest.mark.podman
async def test_trials_amid_faults_leave_nothing_behind(podman: object, tmp_path: Path) -> None:
    out = await soak(tmp_path, 24, 4, 6)
    assert out.struck >= 8 and out.retried >= 6
    assert out.clean, out
