"""Collections of Harbor tasks: dataset.toml with pinned digests, the older registry.json, git repositories."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lego.errors import TaskError
from lego.tasks import harbor_files
from lego.tasks.harbor_words import in_words
from lego.tasks.reading import OnProblem, guarded, json_of, raised, text_of, toml_of

MANIFEST = "dataset.toml"
_GIT = re.compile(r"git\+(?P<url>[^#]+?)(?:@(?P<commit>[0-9A-Za-z._/-]+))?(?:#(?P<folder>.*))?")
_OrgName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*$")]
_Digest = Annotated[str, Field(pattern=r"^sha256:[a-f0-9]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Info(_Part):
    name: _OrgName
    version: Annotated[str, Field(min_length=1)] | None = None


class _TaskRef(_Part):
    name: _OrgName
    digest: _Digest


class _FileRef(_Part):
    path: Annotated[str, Field(pattern=r"^[^/\\]+$")]
    digest: Annotated[str, Field(pattern=r"^(sha256:[a-f0-9]{64})?$")] = ""


class _Manifest(_Part):
    schema_version: str = "1.0"
    dataset: _Info
    tasks: list[_TaskRef] = []
    files: list[_FileRef] = []


class _RegistryTask(_Part):
    name: str
    path: str
    git_url: str | None = None
    git_commit_id: str | None = None


class _RegistryDataset(_Part):
    name: str
    version: str
    tasks: list[_RegistryTask]


def is_collection(path: str) -> bool:
    """Whether a source's path is anything but a plain folder of task folders."""
    return path.startswith("git+") or path.endswith((".toml", ".json")) or (Path(path) / MANIFEST).is_file()


def folders(
    path: str, name: str = "", mirrors: Mapping[str, str] | None = None, on_problem: OnProblem | None = None
) -> list[Path]:
    """The task folders of a collection, in its order.

    path: `dataset.toml` or a folder with one (digests are checked); `registry.json` (`name` chooses the data set, as
    NAME or NAME@VERSION); `git+URL[@COMMIT][#FOLDER]`. mirrors: git URL -> what is cloned in its place.
    A task that is missing, or is not what was pinned, is told to `on_problem` and left out; without it the TaskError is
    raised, as it is for a manifest that is wrong.
    """
    with guarded(path):
        return _folders(path, name, mirrors or {}, on_problem or raised)


def _folders(path: str, name: str, mirrors: Mapping[str, str], on_problem: OnProblem) -> list[Path]:
    if match := _GIT.fullmatch(path):
        root = checkout(match["url"], match["commit"] or "", mirrors)
        inside = _below(root, match["folder"] or "", path)
        return _folders(str(inside), name, mirrors, on_problem) if is_collection(str(inside)) else [inside]
    place = Path(path).expanduser()
    if place.suffix == ".json":
        return _registry(place, name, mirrors, on_problem)
    return _pinned(place / MANIFEST if place.is_dir() else place, on_problem)


def _pinned(path: Path, on_problem: OnProblem) -> list[Path]:
    data = toml_of(text_of(path, fault="user"), path)
    try:
        manifest = _Manifest.model_validate(data)
    except ValidationError as error:
        raise TaskError(f"{path}: {in_words(error)}") from error
    if manifest.schema_version.split(".")[0] != "1":
        raise TaskError(f"{path}: schema_version {manifest.schema_version!r} is not known; lego reads 1.x")
    for file in manifest.files:
        _check_file(path, file)
    known = _by_name(path.parent)
    found: list[Path] = []
    for ref in manifest.tasks:
        try:
            found.append(_task(path, ref, known))
        except TaskError as error:
            on_problem(error)
    if not manifest.tasks:
        raise TaskError(f"{path}: names no tasks", fault="user")
    return found


def _task(manifest: Path, ref: _TaskRef, known: Mapping[str, Path]) -> Path:
    folder = known.get(ref.name) or known.get(ref.name.partition("/")[2])
    if folder is None:
        raise TaskError(
            f"{manifest}: task {ref.name} is not below {manifest.parent}",
            hint="lego fetches no task packages by name; put the task's folder there",
        )
    with guarded(folder):
        digest = f"sha256:{harbor_files.content_hash(folder)}"
    if digest != ref.digest:
        raise TaskError(f"{folder}: is not the task that {manifest.name} pins: it has {digest}, not {ref.digest}")
    return folder


def _check_file(manifest: Path, ref: _FileRef) -> None:
    path = manifest.parent / ref.path
    try:
        digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        raise TaskError(f"{manifest}: files: {ref.path} cannot be read: {error}") from error
    if ref.digest and digest != ref.digest:
        raise TaskError(f"{path}: is not the file that {manifest.name} pins: it has {digest}, not {ref.digest}")


def _by_name(root: Path) -> dict[str, Path]:
    """Tasks below `root` by the name in their task.toml, and by their folder's name where they have none."""
    known: dict[str, Path] = {}
    for path in sorted(root.rglob("task.toml")):
        try:
            task = tomllib.loads(path.read_text(encoding="utf-8")).get("task")
        except (OSError, ValueError, RecursionError):
            task = None  # harbor.load says what is wrong with it, should the manifest name it
        name = task.get("name") if isinstance(task, dict) else None
        known.setdefault(name if isinstance(name, str) else path.parent.name, path.parent)
    return known


def _registry(path: Path, name: str, mirrors: Mapping[str, str], on_problem: OnProblem) -> list[Path]:
    data = json_of(text_of(path, fault="user"), path)
    try:
        listed = TypeAdapter(list[_RegistryDataset]).validate_python(data)
    except ValidationError as error:
        raise TaskError(f"{path}: {in_words(error)}") from error
    wanted, _, version = name.partition("@")
    fitting = [one for one in listed if one.name == wanted and version in ("", one.version)]
    if len(fitting) != 1:
        there = ", ".join(f"{one.name}@{one.version}" for one in listed[:20])
        what = f"{len(fitting)} data sets are {name!r}" if name else "a registry needs `name`, the data set's"
        raise TaskError(f"{path}: {what}; it has: {there}", fault="user")
    found = []
    for task in fitting[0].tasks:
        root = checkout(task.git_url, task.git_commit_id or "", mirrors) if task.git_url else path.parent
        try:
            folder = _below(root, task.path, f"{path}: task {task.name}")
            if not (folder / "task.toml").is_file():
                where = task.git_url or root
                raise TaskError(f"{path}: task {task.name}: there is no {task.path}/task.toml in {where}")
            found.append(folder)
        except TaskError as error:
            on_problem(error)
    return found


def checkout(url: str, commit: str, mirrors: Mapping[str, str]) -> Path:
    """A clone of a git repository at a commit, branch or tag, made once for each and kept in the user's cache.

    Without a commit it is what the repository's HEAD was when first asked. Raises TaskError in git's words, with fault
    infra: a repository out of reach says nothing about its tasks.
    """
    commit = "" if commit.lower() == "head" else commit
    source = mirrors.get(url, url)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lego" / "tasks"
    target = cache / hashlib.sha256(f"{source}\0{commit}".encode()).hexdigest()[:24]
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as aside:
        fresh = Path(aside) / "clone"
        _git("clone", "--quiet", "--no-checkout", "--", source, str(fresh), what=url)
        _git("-C", str(fresh), "checkout", "--quiet", "--detach", commit or "HEAD", "--", what=f"{url} at {commit}")
        shutil.rmtree(fresh / ".git")
        try:
            fresh.rename(target)
        except OSError:  # another process was faster
            if not target.is_dir():
                raise
    return target


def _git(*args: str, what: str) -> None:
    if shutil.which("git") is None:
        raise TaskError(f"git is needed to fetch {what}", hint="install git", fault="user")
    safe = ("-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never")
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(["git", *safe, *args], env=env, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise TaskError(f"git cannot fetch {what}: {lines[-1] if lines else done.returncode}", fault="infra")


def _below(root: Path, relative: str, what: str) -> Path:
    place = (root / relative).resolve()
    if not place.is_relative_to(root.resolve()):
        raise TaskError(f"{what}: {relative!r} leads out of its repository")
    if not place.exists():
        raise TaskError(f"{what}: there is no {relative!r} in it")
    return place
