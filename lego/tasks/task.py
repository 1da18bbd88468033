"""A task: an instruction, the environment it is done in, and the hidden tests that decide."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class File:
    """A file's content and permission bits."""

    data: bytes
    mode: int = 0o644


Tree = Mapping[str, File]
"""Relative POSIX paths to files."""

DEFAULT_PROTECTED = (
    "tests/",
    "test/",
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "setup.cfg",
    "tox.ini",
    "noxfile.py",
    "pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    ".github/",
    ".gitlab-ci.yml",
)
"""What a submission may not change unless the gold solution does: tests, their collection settings, start-up hooks."""


@dataclass(frozen=True)
class Environment:
    """Where the agent works.

    `image` names a prebuilt image; otherwise `context` holds a Dockerfile and what it copies. `workspace` is laid
    over the image when a container starts (absolute paths), so that many generated tasks share one image; it is
    part of the pristine state. `workdir` empty means the image's own. `roots` are the absolute paths whose changes
    are the submission; empty means the workdir.
    """

    context: Tree = field(default_factory=dict)
    image: str = ""
    workspace: Tree = field(default_factory=dict)
    workdir: str = ""
    roots: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    build_timeout: float = 600.0


@dataclass(frozen=True)
class DemoStep:
    """One step of a scripted demonstration: what to run, and what to say or think beside it."""

    command: str
    content: str = ""
    reasoning: str | None = None


@dataclass(frozen=True)
class Task:
    """`id` is unique in a run; `digest` (sha256 hex) is over everything that decides what the task is.

    `tests` are hidden until verification and contain test.sh; `solution` holds solve.sh. `protected` are paths
    (relative to a root, gitwildmatch patterns) that a submission may not change; `demonstration` drives scripted
    trials; `harness` is the one it runs in, empty where the run's weights decide.
    """

    id: str
    digest: str
    instruction: str
    environment: Environment
    tests: Tree
    solution: Tree = field(default_factory=dict)
    agent_timeout: float | None = None
    agent_user: str | None = None
    verifier_timeout: float = 600.0
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    verifier_user: str | None = None
    solution_env: Mapping[str, str] = field(default_factory=dict)
    protected: tuple[str, ...] = ()
    demonstration: tuple[DemoStep, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    harness: str = ""

    def content_digest(self) -> str:
        """sha256 hex over all that decides what the task is: not its name, place, notes, demonstration or harness."""
        env = self.environment
        decisive = {
            "instruction": self.instruction,
            "context": _fingerprint(env.context),
            "image": env.image,
            "workspace": _fingerprint(env.workspace),
            "workdir": env.workdir,
            "roots": list(env.roots),
            "env": dict(env.env),
            "limits": [env.cpus, env.memory_mb, env.storage_mb],
            "tests": _fingerprint(self.tests),
            "solution": _fingerprint(self.solution),
            "agent": [self.agent_timeout, self.agent_user],
            "verifier": [self.verifier_timeout, dict(self.verifier_env), self.verifier_user],
            "solution_env": dict(self.solution_env),
            "protected": list(self.protected),
        }
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _fingerprint(tree: Tree) -> dict[str, list[str | int]]:
    return {path: [hashlib.sha256(file.data).hexdigest(), file.mode] for path, file in tree.items()}
