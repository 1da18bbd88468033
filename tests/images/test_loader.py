from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from lego.images.loader import edited
from tests.conftest import missing

TEXTS = b"\0/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0code\0/etc/ld.so.cache\0"


def test_the_folder_is_replaced_and_the_cache_is_gone_at_the_same_length():
    assert edited(TEXTS, "/opt/harness/lego/lib") == (
        b"\0/opt/harness/lego/lib/\0/usr/opt/harness/lego/lib/\0/lib/\0code\0/---------------\0"
    )
    longer = TEXTS.replace(b"x86_64", b"aarch64")
    assert b"\0/opt/harness/lego/lib//\0" in edited(longer, "/opt/harness/lego/lib")


@pytest.mark.parametrize(("texts", "folder"), [(TEXTS, "/opt/harness/lego/libs"), (b"\0/lib64/\0", "/l")])
def test_what_does_not_fit_is_refused(texts, folder):
    with pytest.raises(ValueError, match="cannot take the place"):
        edited(texts, folder)


def test_a_program_started_by_the_copy_finds_its_libraries_there_alone():
    """With this machine's own loader: the same library, found elsewhere."""
    found = sorted(Path("/lib64").glob("ld-linux*")) or sorted(Path("/lib").glob("ld-linux*"))
    if not found or "-linux-" not in str(found[0].resolve().parent):
        missing("a Debian-like loader", f"found {found}")
    real = found[0].resolve()
    with tempfile.TemporaryDirectory(prefix="l", dir="/tmp") as short:
        copy = Path(short, "ld.so")
        copy.write_bytes(edited(real.read_bytes(), short))
        copy.chmod(0o755)
        shutil.copy(real.parent / "libc.so.6", short)
        done = subprocess.run([copy, "--list", "/bin/true"], capture_output=True, text=True, check=True)
    assert f"libc.so.6 => {short}/" in done.stdout and str(real.parent) not in done.stdout
