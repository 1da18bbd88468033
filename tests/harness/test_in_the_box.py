"""What the runners of Python harnesses do before anything else, without a sandbox."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lego.config.places import harness_specs_dir

LOOK = """
import os, sys
sys.path.insert(0, {folder!r})
os.environ["ADDED"] = "by the interpreter's start"
import in_the_box
print(in_the_box.take_token(), sorted(os.environ))
before = in_the_box.lend_tmux()
print(before)
print(os.environ["PATH"])
"""


def ran(folder: Path) -> list[str]:
    code = LOOK.format(folder=str(harness_specs_dir()))
    env = {"PATH": "/a b:/bin", "HOME": "/", "LEGO_TOKEN": "sk-1", "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-I", "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_commands_inherit_what_the_task_set_and_neither_token_nor_additions(tmp_path: Path) -> None:
    assert ran(tmp_path)[0] == "sk-1 ['HOME', 'PATH', 'TMPDIR']"


def test_the_tmux_lent_starts_what_it_starts_with_the_path_as_it_was(tmp_path: Path) -> None:
    _, before, after = ran(tmp_path)
    assert before == "/a b:/bin" and after.startswith(before + ":")
    program = Path(after.removeprefix(before + ":")) / "tmux"
    text = program.read_text()
    assert program.stat().st_mode & 0o111 == 0o111 and "PATH='/a b:/bin' " in text and ' "$@"' in text
    settings = next(word for word in text.split() if word.endswith("tmux.conf"))
    assert Path(settings).read_text() == "set-environment -gu LOCPATH\n"
