"""A task: an instruction, the environment it is done in, and the hidden tests that decide."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from lego.tasks.installs import Installs


@dataclass(frozen=True)
class File:
    """A file's content and permission bits."""

    data: bytes
    mode: int = 0o644


Tree = Mapping[str, File]
"""Relative POSIX paths to files."""

LOG_PARSERS = (
    "pytest", "pytest_options", "pytest_v2", "swesmith", "r2e", "matplotlib", "seaborn", "sympy", "django", "gotest",
    "cargo",
)  # fmt: skip
"""What a log of tests can be read by: `lego.verifier.logs.frameworks` has the parsers."""

DEFAULT_PROTECTED = (
    "tests/",
    "test/",
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
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
class Healthcheck:
    """A command of the environment's that must exit 0 before work begins. All times are in seconds. In the
    `start_period` a failure does not count, and the command is asked every `start_interval`; after that `retries`
    failures in a row, `interval` apart, are too many. `timeout` bounds one run of it."""

    command: str
    interval: float = 5.0
    timeout: float = 30.0
    start_period: float = 0.0
    start_interval: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class Environment:
    """Where the agent works.

    `image` names a prebuilt image; otherwise `context` holds a Dockerfile and what it copies. `workspace` is laid
    over the image when a container starts (absolute paths), so that many generated tasks share one image; it is
    part of the pristine state. `workdir` empty means the image's own. `roots` are the absolute paths whose changes
    are the submission; empty means the workdir. With a `health` check the image's own ENTRYPOINT is started, too.
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
    health: Healthcheck | None = None


@dataclass(frozen=True)
class Artifact:
    """A file or folder (absolute path) that goes from the agent's container to the verifier's, less what matches the
    patterns `exclude` (as tar --exclude takes them)."""

    source: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Collect:
    """A shell command that is run in the agent's container when the agent is done, before anything is taken out of it.
    How it ends means nothing. `timeout` in seconds."""

    command: str
    timeout: float = 60.0


@dataclass(frozen=True)
class Separate:
    """A verifier with an environment of its own, which gets the `artifacts` and nothing else of what the agent left.
    `bundled`: its image holds the tests; otherwise it is the agent's image, into which they are laid."""

    environment: Environment
    bundled: bool
    artifacts: tuple[Artifact, ...]

    def decisive(self) -> dict[str, object]:
        """All of it that decides a verdict, as JSON."""
        env = self.environment
        return {
            "context": _fingerprint(env.context) if self.bundled else None,
            "image": env.image,
            "workdir": env.workdir,
            "env": dict(env.env),
            "limits": [env.cpus, env.memory_mb, env.storage_mb],
            "health": env.health and asdict(env.health),
            "artifacts": [asdict(one) for one in self.artifacts],
        }


@dataclass(frozen=True)
class DemoStep:
    """One step of a scripted demonstration: what to run, and what to say or think beside it."""

    command: str
    content: str = ""
    reasoning: str | None = None


@dataclass(frozen=True)
class Canary:
    """A test that must fail, under a name made up for each verification. `path` (absolute) is where its file goes,
    `argument` how the test command is told of it, `code` its content; `{word}` stands for the name in all three."""

    path: str
    argument: str
    code: str

    def named(self, word: str) -> Canary:
        return Canary(*(text.replace("{word}", word) for text in (self.path, self.argument, self.code)))


@dataclass(frozen=True)
class Grading:
    """What makes a reward of a run of the hidden tests; docs/graders.md.

    `grader`: harbor (the reward file) | swebench (named tests in the log, read by the published `parser`) |
    pytest-ids (named tests, reported by a plug-in) | command (the exit code). `fail_to_pass` and `pass_to_pass` name
    the tests that must each be reported as passed. `excluded`: tests that the source names and that do not pass with
    the solution, and why; they are not asked for. `canary`: None where the test framework has no place for one.
    """

    grader: str = "harbor"
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    parser: str = ""
    canary: Canary | None = None

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.fail_to_pass, *self.pass_to_pass)))

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files in which pytest's named tests stand, relative to the project."""
        return tuple(dict.fromkeys(name.partition("::")[0] for name in self.named if "::" in name))


def exact(path: str) -> str:
    """The gitwildmatch pattern that means one path below a root."""
    return "/" + re.sub(r"([\\*?\[ ])", r"\\\1", path)


@dataclass(frozen=True)
class Stage:
    """What a step does in the agent's container: `files` (absolute paths) are laid in, the script `setup` (one of them;
    empty for none) is run, `health` must be good, and then the agent begins, or the step's `solution`. The later steps
    find what the earlier ones left."""

    files: Tree = field(default_factory=dict)
    setup: str = ""
    health: Healthcheck | None = None
    solution: Tree = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)
    agent_timeout: float | None = None


@dataclass(frozen=True)
class Step:
    """One step of several. `task`: what is asked and how it is graded, as a task of its own, whose `stages` are this
    step's and those before it. `min_reward`: the least of each reward without which the next step does not begin."""

    name: str
    task: Task
    min_reward: Mapping[str, float] = field(default_factory=dict)


Strategy = Literal["mean", "final"]
"""How the rewards of several steps become one: key by key their mean, or those of the last step that was begun."""


@dataclass(frozen=True)
class Task:
    """`id` is unique in a run; `digest` (sha256 hex) is over everything that decides what the task is.

    `tests` are hidden until verification and contain test.sh, unless a `separate` verifier's image has them; `solution`
    holds solve.sh; `collect` are run when the agent is done; `installs` is what the tests find installed. `protected`
    are paths (relative to a root, gitwildmatch patterns) that a submission may not change; `demonstration` drives
    scripted trials; `harness` is the one it runs in, empty where the run's weights decide; `grading` says what is made
    of the tests' run.

    A task of several `steps` has one trial and one reward, which `strategy` makes of theirs; its own tests and solution
    are all of theirs, by step, and are only looked at. `stages` are a step's alone.
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
    grading: Grading = field(default_factory=Grading)
    collect: tuple[Collect, ...] = ()
    separate: Separate | None = None
    installs: Installs = field(default_factory=Installs)
    steps: tuple[Step, ...] = ()
    strategy: Strategy = "mean"
    stages: tuple[Stage, ...] = ()

    def content_digest(self) -> str:
        """sha256 hex over all that decides what the task is: not its name, place, notes, demonstration or harness."""
        env = self.environment
        decisive: dict[str, object] = {
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
        # What came to be known later does not change the digest of tasks that say nothing of it.
        if self.grading != Grading():
            decisive["grading"] = asdict(self.grading)
        if env.health is not None:
            decisive["health"] = asdict(env.health)
        if self.collect:
            decisive["collect"] = [asdict(one) for one in self.collect]
        if self.separate is not None:
            decisive["separate"] = self.separate.decisive()
        if self.installs:
            decisive["installs"] = asdict(self.installs)
        if self.stages:
            stage = self.stages[-1]
            decisive["stage"] = [_fingerprint(stage.files), stage.setup, stage.health and asdict(stage.health)]
        if self.steps:
            decisive["steps"] = [[one.name, one.task.content_digest(), dict(one.min_reward)] for one in self.steps]
            decisive["strategy"] = self.strategy
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _fingerprint(tree: Tree) -> dict[str, list[str | int]]:
    return {path: [hashlib.sha256(file.data).hexdigest(), file.mode] for path, file in tree.items()}
