"""The image of a SWE-bench task: a Dockerfile from a pinned recipe, from the published specs, or on a named image.

Its layers go from what many tasks share to what one task has: the base, the packages, the repository. Nothing that
could hold the fix stays: one commit, no pip (it vendors releases of other projects), no wheels that venv brings.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lego.errors import TaskError

APP = "/testbed"
_ENV = "/opt/env"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONDA = "/opt/miniconda3/envs/testbed/bin"
BASES = {"3.9": "debian:bullseye", "3.11": "debian:bookworm"}
"""Python -> the image that has it. Others come from the official Python images."""
ARCHIVE = "source.tar"

# Of many files a commit packs its repository behind its own back, and is killed there when the build's step ends.
_COMMIT = (
    "git init -q . && git -c core.autocrlf=false add -A && "
    "git -c gc.auto=0 -c user.name=lego -c user.email=lego@localhost commit -q --allow-empty -m base"
)
_CLEAN = f"{_ENV}/bin/python -m pip uninstall -q -y pip && rm -rf /usr/share/python-wheels /usr/lib/python3*/ensurepip"


@dataclass(frozen=True)
class Sdist:
    """A source archive of a package index, `requirement` being NAME==VERSION."""

    requirement: str
    file: str
    sha256: str


@dataclass(frozen=True)
class GitUrl:
    """A repository to clone while the image is built."""

    url: str
    commit: str


@dataclass(frozen=True)
class Archive:
    """A tar of the tree, in the build context as ARCHIVE."""


Source = Sdist | GitUrl | Archive
"""Where the repository comes from."""


@dataclass(frozen=True)
class Packages:
    """What is installed beside the project. `pins`: with `pip==…` set and no dependencies resolved (a recipe);
    otherwise as pip finds them. `files`: requirement files of the repository, the first that is there."""

    python: str
    wanted: Sequence[str] = ()
    pins: bool = False
    files: Sequence[str] = ()


def dockerfile(
    packages: Packages, source: Source, install: Sequence[str], before: Sequence[str], bases: Mapping[str, str]
) -> str:
    """`install`: commands run in the repository once the packages are there; `before`: ones run before that."""
    base = bases.get(packages.python) or BASES.get(packages.python) or f"python:{packages.python}"
    pip = f"{_ENV}/bin/python -m pip install -q --no-cache-dir"
    wanted = " ".join(shlex.quote(one) for one in packages.wanted)
    tools = "pip==24.0" if packages.pins else "'pip<24.1' 'setuptools<70' wheel"
    first = [f"python3 -m venv {_ENV}", f"{pip} {tools}"]
    if wanted:
        first.append(f"{pip} {'--no-deps ' if packages.pins else ''}{wanted}")
    lines = [f"FROM {base}", f"RUN {_joined(first)}", f"ENV PATH={_ENV}/bin:{_PATH}"]
    if isinstance(source, Archive):
        lines.append(f"ADD {ARCHIVE} {APP}/")
    second = [*_obtain(source), f"cd {APP}", *before]
    if packages.files:
        names = " ".join(shlex.quote(name) for name in packages.files)
        second.append(
            f"for f in {names}; do if [ -f $f ]; then grep -vE '^\\s*(-e \\.|\\.\\[test|#)' $f > /tmp/requirements.txt"
            f" && {pip} -r /tmp/requirements.txt; break; fi; done"
        )
    second += [*install, _COMMIT, _CLEAN, 'rm -rf /tmp/* "$HOME/.cache"']
    return "\n".join([*lines, f"RUN {_joined(second)}", f"WORKDIR {APP}", ""])


def on_image(image: str, remove: Sequence[str] = (), bug: str = "") -> str:
    """On a prebuilt image that has the repository in APP. `remove`: paths taken out of it; `bug`: a patch in the build
    context, applied to the repository."""
    steps = [f"cd {APP}", *(f"rm -rf {shlex.quote(path)}" for path in remove)]
    if bug:
        steps += [f"git apply --whitespace=nowarn /tmp/{bug}", f"rm /tmp/{bug}"]
    # Git's leftovers under other names go the same way as the repository's own.
    steps += [f"rm -rf {APP}/.git {APP}/.git.*", _COMMIT]
    copied = [f"COPY {bug} /tmp/{bug}"] if bug else []
    return "\n".join(
        [f"FROM {image}", "USER 0", *copied, f"RUN {_joined(steps)}", f"ENV PATH={_CONDA}:$PATH", f"WORKDIR {APP}", ""]
    )


def published(repo: str, version: str, where: str) -> Mapping[str, Any]:
    """The environment that the published benchmark gives a version of a repository, read from its own package."""
    try:
        from swebench.harness.constants import MAP_REPO_TO_REQS_PATHS, MAP_REPO_VERSION_TO_SPECS
    except ImportError:
        raise TaskError(
            f"{where}: nothing says how the environment of {repo} {version} is made",
            hint="pip install 'lego[swebench]' for the published specs, or give options: {recipes: FILE}",
            fault="user",
        ) from None
    try:
        spec = dict(MAP_REPO_VERSION_TO_SPECS[repo][version])
    except KeyError:
        raise TaskError(f"{where}: the published specs have no {repo} {version}") from None
    return {"reqs_path": list(MAP_REPO_TO_REQS_PATHS.get(repo, ())), **spec}


def from_spec(spec: Mapping[str, Any], source: Source, version: str, bases: Mapping[str, str], where: str) -> str:
    """The Dockerfile of a spec as the published benchmark writes them, or a row its own.

    Raises TaskError, naming what lego has no way to make.
    """
    packages = " ".join(texts(spec, "packages", where))
    asked = {
        "environment.yml (conda)": packages == "environment.yml",
        "docker_specs (another language than Python)": bool(spec.get("docker_specs")),
        "build": bool(spec.get("build")),
        "execute_test_as_nonroot": bool(spec.get("execute_test_as_nonroot")),
        "no python": not spec.get("python"),
    }
    refused = [name for name, there in asked.items() if there]
    if refused:
        raise TaskError(f"{where}: its environment needs what lego does not make: {', '.join(refused)}",
                        hint="name an image with everything in it: docker_image in the row")  # fmt: skip
    files = texts(spec, "reqs_path", where) or ["requirements.txt"]
    try:
        listed = [] if packages == "requirements.txt" else shlex.split(packages)
    except ValueError as error:
        raise TaskError(f"{where}: its environment's packages: {error}: {packages[:80]!r}") from None
    wanted = [*listed, *texts(spec, "pip_packages", where)]
    before = [_as_root(one) for one in texts(spec, "pre_install", where)]
    if apt := texts(spec, "apt-pkgs", where):
        before.insert(0, "apt-get update && apt-get install -y " + " ".join(apt))
    commands = texts(spec, "install", where)
    # One commit has no tags for setuptools_scm to read a version from.
    commands = [f"export SETUPTOOLS_SCM_PRETEND_VERSION={shlex.quote(version or '0')}", *commands]
    made = Packages(str(spec["python"]), wanted, files=files if packages == "requirements.txt" else ())
    return dockerfile(made, source, commands, before, bases)


def texts(spec: Mapping[str, Any], key: str, where: str) -> list[str]:
    """What a spec says under `key`: nothing, one text, or a list of them. Raises TaskError for anything else."""
    value = spec.get(key)
    found = [value] if isinstance(value, str) and value else value or []
    if not isinstance(found, list | tuple) or not all(isinstance(one, str) for one in found):
        raise TaskError(f"{where}: its environment's {key} must be a text or a list of texts, not {value!r:.80}")
    return list(found)


def _obtain(source: Source) -> list[str]:
    if isinstance(source, Sdist):
        name = shlex.quote(source.file)
        return [
            # pip looks into what it downloads, with the tools that are to install it anyway.
            f"python -m pip download -q --no-cache-dir --no-deps --no-binary :all: --no-build-isolation -d /tmp/sdist"
            f" {shlex.quote(source.requirement)}",
            f"cd /tmp/sdist && echo {source.sha256}' '{name} | sha256sum -c --quiet",
            f"mkdir -p {APP} && tar xzf {name} -C {APP} --strip-components=1 --no-same-owner && cd /",
        ]
    if isinstance(source, GitUrl):
        url, commit = shlex.quote(source.url), shlex.quote(source.commit)
        return [
            f"git init -q {APP}",
            f"(git -C {APP} fetch -q --depth 1 {url} {commit} || git -C {APP} fetch -q {url})",
            f"git -C {APP} checkout -q {commit}",
            f"rm -rf {APP}/.git",
        ]
    return []


def _as_root(command: str) -> str:
    return command.replace("sudo ", "")


def _joined(commands: Sequence[str]) -> str:
    return " && \\\n    ".join(commands)
