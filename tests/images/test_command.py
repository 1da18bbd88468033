from __future__ import annotations

import os
from pathlib import Path

import pytest

from lego.images.command import CommandFailed, run_logged

LONG = "RUN pip download r==99 && " + "true && " * 40 + "true"
FAILED = 'Error: building at STEP "{}": while running runtime: exit status 1'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["first", "No match for r==99"], "No match for r==99"),
        (
            [f"STEP 2/3: {LONG}", "ERROR: No match for r==99", FAILED.format(LONG)],
            f"ERROR: No match for r==99 (exit status 1, in {LONG[:60]}…)",
        ),
        (
            ["STEP 2/3: RUN false", FAILED.format("RUN false")],
            "exit status 1, in RUN false",
        ),
        (
            ["--> 0123", 'Error: building at STEP "COPY a /": copier: stat: "/a": no such file or directory'],
            'copier: stat: "/a": no such file or directory, in COPY a /',
        ),
        (["lego: the index does not answer", "Error: exit status 100"], "the index does not answer"),
        ([], "sh ended with exit code 125"),
    ],
    ids=["a line", "a step's command", "a silent step", "a step of podman's own", "a script of ours", "nothing"],
)
async def test_a_failure_says_what_failed(tmp_path: Path, lines: list[str], said: str) -> None:
    (tmp_path / "said").write_text("".join(f"{line}\n" for line in lines))
    with (tmp_path / "log").open("wb") as log, pytest.raises(CommandFailed) as raised:
        await run_logged(["sh", "-c", f"cat {tmp_path / 'said'}; exit 125"], os.environ, log)
    assert raised.value.message == said and raised.value.code == 125
