"""Where a project comes from: an sdist through the host's own pip, or a folder."""

from __future__ import annotations

import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lego.errors import TaskError
from lego.plain import neutral
from lego.tasks.task import File, Tree

_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_IGNORED = frozenset(
    (
        ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".tox", ".nox", ".eggs", ".mypy_cache", ".pytest_cache",
        ".ruff_cache", "node_modules", "build", "dist",
    )
)  # fmt: skip
_LARGEST_FILE = 4 << 20
_LARGEST_TREE = 64 << 20
_LONGEST_NAME = 100
_UNFIT = re.compile(r"[^A-Za-z0-9.!+_]+")
"""What a version has that a folder's name should not."""
_DOWNLOAD_TIMEOUT = 300
_NO_NETWORK = ("NewConnectionError", "Temporary failure in name resolution", "ProxyError", "ConnectTimeout", "SSLError")


@dataclass(frozen=True)
class Project:
    """A project's files (relative paths). `sha256` is of the sdist's file, or over the folder's content; `origin`
    says in words where it came from; `summary` is its own description in one line, or empty."""

    name: str
    version: str
    tree: Tree
    origin: str
    sha256: str
    summary: str = ""


def fetch(target: str, cache: Path) -> Project:
    """The project that `target` names: PACKAGE==VERSION, or a folder. An sdist is kept in `cache`.

    Raises TaskError (fault user) where there is no such thing, and with fault infra where the index is out of reach.
    """
    if Path(target).is_dir():
        return from_folder(Path(target))
    match = _PINNED.fullmatch(target)
    if match is None:
        hint = "write PACKAGE==VERSION (a version pins what the tasks are made from), or name a folder"
        raise TaskError(f"{target}: neither a folder nor a package with its version", hint=hint, fault="user")
    name, version = match[1], match[2]
    path = _kept(cache, name, version) or _download(name, version, cache)
    data = path.read_bytes()
    tree = _unpacked(path)
    return Project(
        normalised(name), version, tree, f"{name}=={version}, {path.name}", hashlib.sha256(data).hexdigest(),
        _summary(tree),
    )  # fmt: skip


def from_folder(folder: Path) -> Project:
    """A folder as it stands, version control, caches and virtual environments left out."""
    tree: dict[str, File] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if one not in _IGNORED and not one.endswith(".egg-info"))
        for name in sorted(names):
            path = Path(root, name)
            if path.is_file() and not path.is_symlink() and not name.endswith((".pyc", ".so")):
                tree[path.relative_to(folder).as_posix()] = _file(path)
    bounded = _bounded(tree, str(folder))
    described = _project_table(bounded)
    own = folder.resolve().name
    name = str(described.get("name") or own)
    total = hashlib.sha256()
    for path_, file in bounded.items():
        total.update(f"{path_}\0{file.mode:o}\0{len(file.data)}\0".encode() + file.data)
    version = _UNFIT.sub("-", str(described.get("version") or "0")).strip("-.")
    return Project(
        normalised(name) or _numbered(name), version[:_LONGEST_NAME] or "0", bounded, f"the folder {neutral(own)}",
        total.hexdigest(), str(described.get("description") or ""),
    )  # fmt: skip


def normalised(name: str) -> str:
    """A name as package indexes compare it: a-z, 0-9 and single dashes. What else a folder's name may have, spaces and
    letters of other alphabets, becomes a dash or goes; empty where nothing is left."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:_LONGEST_NAME].strip("-")


def _numbered(name: str) -> str:
    """A name for what has none that can be written in a-z."""
    return f"project-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"


def _file(path: Path) -> File:
    try:
        return File(path.read_bytes(), 0o755 if path.stat().st_mode & 0o111 else 0o644)
    except OSError as error:
        hint = "make it readable, or move it out of the folder"
        raise TaskError(f"{path}: cannot be read: {error.strerror}", hint=hint, fault="user") from error


def _kept(cache: Path, name: str, version: str) -> Path | None:
    for path in sorted(cache.glob("*")) if cache.is_dir() else ():
        stem, _, found = re.sub(r"\.(tar\.gz|tar\.bz2|zip)$", "", path.name).rpartition("-")
        if normalised(stem) == normalised(name) and found == version:
            return path
    return None


def _download(name: str, version: str, cache: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="lego-sdist-") as folder:
        # What pip needs to look into the sdist may well come as wheels.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", name, "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--dest", folder, f"{name}=={version}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise _unreachable(name, f"pip did not finish in {_DOWNLOAD_TIMEOUT} s") from None
        got = sorted(Path(folder).iterdir())
        if done.returncode == 0 and got:
            cache.mkdir(parents=True, exist_ok=True)
            aside = cache / f".{got[0].name}.{os.getpid()}"
            shutil.copyfile(got[0], aside)
            return aside.rename(cache / got[0].name)
    complaints = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    said = (complaints or done.stderr.strip().splitlines() or ["no output"])[-1].removeprefix("ERROR: ")
    if any(word in done.stderr for word in _NO_NETWORK):
        raise _unreachable(name, said)
    if any(word in done.stderr for word in ("No matching distribution", "Could not find a version")):
        hint = "check name and version; a release that has only wheels cannot be used: clone it and name the folder"
        raise TaskError(f"{name}=={version}: the package index has no sdist of it", hint=hint, fault="user")
    raise TaskError(f"{name}=={version}: pip could not download it: {said[:300]}", fault="user")


def _unreachable(name: str, said: str) -> TaskError:
    hint = "injecting into a package needs the network (or a mirror in pip's configuration); a folder's sources do not"
    return TaskError(f"{name}: the package index cannot be reached: {said[:300]}", hint=hint, fault="infra")


def _unpacked(path: Path) -> Tree:
    tree: dict[str, File] = {}
    try:
        for name, data, mode in _members(path):
            parts = PurePosixPath(name).parts[1:]
            if parts and ".." not in parts and not any(part.endswith(".egg-info") for part in parts):
                tree["/".join(parts)] = File(data, 0o755 if mode & 0o111 else 0o644)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise TaskError(f"{path.name}: cannot be unpacked: {error}", fault="user") from error
    return _bounded(tree, path.name)


def _members(path: Path) -> Iterator[tuple[str, bytes, int]]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield info.filename, archive.read(info), (info.external_attr >> 16) or 0o644
        return
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file.read(), member.mode


def _bounded(tree: dict[str, File], what: str) -> Tree:
    tree = {path: file for path, file in tree.items() if len(file.data) <= _LARGEST_FILE}
    if strange := next((path for path in tree if neutral(path) != path), None):
        hint = "tests and patches name files as text: rename it"
        raise TaskError(f"{what}: {neutral(strange)!r} is a file's name that is no plain text", hint=hint, fault="user")
    if sum(len(file.data) for file in tree.values()) > _LARGEST_TREE:
        raise TaskError(f"{what}: has more than {_LARGEST_TREE >> 20} MB of files", fault="user")
    return dict(sorted(tree.items()))


def _summary(tree: Tree) -> str:
    info = tree.get("PKG-INFO")
    return str(email.message_from_bytes(info.data).get("Summary") or "") if info else ""


def _project_table(tree: Tree) -> dict[str, Any]:
    file = tree.get("pyproject.toml")
    try:
        table = tomllib.loads(file.data.decode()).get("project", {}) if file else {}
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}
