"""A 2 MB image with a static busybox: what tests of the sandbox run in."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from lego.sandbox.podman import Podman
from tests.conftest import missing

IMAGE = "localhost/lego-test/busybox:3"
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n"
_FILES = {
    "etc/passwd": _PASSWD,
    "etc/group": b"root:x:0:\nagent:x:1000:\n",
    "app/kept.txt": b"kept\n",
    "app/old.txt": b"old\n",
    "app/pkg/a.py": b"a = 1\n",
    "app/pkg/b.py": b"b = 1\n",
    "app/pkg/conftest.py": b"# pristine\n",
    "app/tests/test_a.py": b"def test_a(): pass\n",
}


def busybox_image(podman: Podman) -> str:
    """The image's tag; imported into the store once."""
    if podman.cli("image", "exists", IMAGE, check=False).returncode != 0:
        podman.cli("import", "--change", "WORKDIR /app", "-", IMAGE, input=rootfs())
    return IMAGE


def rootfs() -> bytes:
    """The image's files, as a tar."""
    return _tar(_binary())


def _binary() -> bytes:
    """A statically linked busybox: Debian's package, fetched by apt and only unpacked."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        missing("podman", "these tests fetch busybox-static with apt-get")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "busybox-static"], cwd=folder, check=True, capture_output=True)
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), "x"], cwd=folder, check=True)
        return next(path for path in Path(folder, "x").rglob("bin/busybox") if path.is_file()).read_bytes()


def _tar(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in ("./", "bin", "etc", "root", "home/agent", "app", "app/pkg", "app/tests", "tmp", "var"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for path, data in {"bin/busybox": busybox, **_FILES}.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755 if path == "bin/busybox" else 0o644
            tar.addfile(entry, io.BytesIO(data))
        for name in (
            "sh",
            "cat",
            "ls",
            "mkdir",
            "rm",
            "rmdir",
            "mv",
            "cp",
            "ln",
            "dd",
            "sleep",
            "id",
            "kill",
            "head",
            "touch",
            "chmod",
            "grep",
            "sed",
            "yes",
            "mkfifo",
            "mount",
            "wget",
            "env",
            "tar",
            "true",
            "find",
            "printf",
            "wc",
            "nc",
            "su",
        ):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return buffer.getvalue()
