"""What the runners of Python harnesses share: an environment that is the task's own, and the runtime image's tmux.

Runs inside the sandbox, from the runtime image, which is mounted read-only.
"""

import os
import shlex
import tempfile
from pathlib import Path

IMAGE = Path(__file__).resolve().parent.parent
TMUX = """#!/bin/sh
PATH={path} LOCPATH={image}/usr/lib/locale exec {image}/lego/ld.so --library-path {image}/lego/lib \\
{image}/usr/bin/tmux -u -f {settings} "$@"
"""
SETTINGS = "set-environment -gu LOCPATH\n"


def take_token() -> str:
    """The API token, taken out of the environment together with all that the interpreter's start put there: commands
    that the agent runs inherit what is left."""
    given = Path("/proc/self/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0].decode(errors="surrogateescape") for entry in given}
    for name in os.environ.keys() - names:
        del os.environ[name]
    return os.environ.pop("LEGO_TOKEN")


def lend_tmux() -> str:
    """Put the runtime's tmux on this process's PATH; returns the PATH as it was.

    It is started by the runtime's own loader with the runtime's locales, and speaks UTF-8 whatever the locale of the
    task; what it starts sees neither those locales nor the longer PATH.
    """
    path = os.environ.get("PATH", os.defpath)
    folder = Path(tempfile.mkdtemp(prefix="tmux-of-the-harness-"))
    settings, program = folder / "tmux.conf", folder / "tmux"
    settings.write_text(SETTINGS)
    program.write_text(TMUX.format(path=shlex.quote(path), image=IMAGE, settings=settings))
    program.chmod(0o755)
    os.environ["PATH"] = f"{path}:{folder}"
    return path
