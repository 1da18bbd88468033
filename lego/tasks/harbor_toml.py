"""What a Harbor `task.toml` may say (schema 1.x), as models; what lego cannot honour is listed by name.

The models refuse what Harbor's own refuse. They are stricter in one thing: a value of the wrong type is an error, where
Harbor turns "30" into 30.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    field_validator,
    model_validator,
)

from lego.tasks.harbor_files import pattern
from lego.tasks.harbor_hosts import check_hosts
from lego.tasks.harbor_values import Image, Mebibytes, Positive, Seconds, Variables, Whole
from lego.tasks.harbor_words import unknown

NetworkMode = Literal["public", "no-network", "allowlist"]

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
_SERVICE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*)+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG])")
_MEBIBYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_STEP_BAD = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9¹²³])", re.IGNORECASE)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class _Section(BaseModel):
    """Harbor ignores keys it does not know; they are kept here so that validation can name them."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Network(_Section):
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _hosts_need_an_allowlist(self) -> _Network:
        if self.allowed_hosts is not None:
            check_hosts(self.allowed_hosts)
            if self.network_mode != "allowlist" and (self.allowed_hosts or self.network_mode is None):
                raise ValueError("allowed_hosts is only valid with network_mode = 'allowlist'")
        return self

    def wishes(self, name: str) -> Iterator[str]:
        """Where this explicitly asks for more network than a sealed sandbox gives."""
        if self.network_mode in ("public", "allowlist"):
            yield f"{name}.network_mode = {self.network_mode}"
        if self.allowed_hosts:
            yield f"{name}.allowed_hosts"


class Agent(_Network):
    timeout_sec: Seconds | None = None
    user: str | Whole | None = None


class Healthcheck(_Section):
    command: str
    interval_sec: Annotated[FiniteFloat, Field(ge=0)] = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    start_interval_sec: Annotated[FiniteFloat, Field(ge=0)] = 5.0
    retries: Positive = 3


class Tpu(_Section):
    type: Annotated[str, Field(min_length=1)]
    topology: str

    @field_validator("topology")
    @classmethod
    def _axes(cls, value: str) -> str:
        if not _TOPOLOGY.fullmatch(value.strip()):
            raise ValueError(f"{value!r} is not a topology such as 2x2")
        return value


class McpServer(_Section):
    name: str
    transport: Literal["stdio", "sse", "streamable-http", "http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}

    @model_validator(mode="after")
    def _reachable(self) -> McpServer:
        if self.transport == "stdio" and (not self.command or self.headers):
            raise ValueError("a stdio server needs a command, and has no headers")
        if self.transport != "stdio" and not self.url:
            raise ValueError(f"a server with transport {self.transport} needs a url")
        return self


class Environment(_Network):
    build_timeout_sec: Seconds = 600.0
    docker_image: Image | None = None
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    cpus: Annotated[FiniteFloat, Field(gt=0, le=1e6)] | None = None
    memory_mb: Mebibytes | None = None
    storage_mb: Mebibytes | None = None
    gpus: Whole | None = None
    gpu_types: list[str] | None = None
    tpu: Tpu | None = None
    mcp_servers: list[McpServer] = []
    env: Variables = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    allow_internet: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _deprecated_sizes(cls, data: Any) -> Any:
        """`memory = "2G"`, `storage`: taken for memory_mb, storage_mb; an error beside another size than that."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old in ("memory", "storage"):
            if old not in data:
                continue
            text, new = data.pop(old), f"{old}_mb"
            match = _SIZE.fullmatch(text.strip().upper()) if isinstance(text, str) else None
            if match is None:
                raise ValueError(f"{old}: {text!r} is not a size such as 2G")
            size = float(match[1]) * _MEBIBYTES[match[2]]
            if size > 2**40:
                raise ValueError(f"{old}: {text[:40]!r} is more than any machine has")
            megabytes = int(size)
            if data.setdefault(new, megabytes) != megabytes:
                raise ValueError(f"{old} and {new} contradict each other: {text!r} and {data[new]!r}")
        return data

    def network(self, name: str) -> Iterator[str]:
        yield from self.wishes(name)
        if self.allow_internet and self.network_mode is None:
            yield f"{name}.allow_internet = true"

    def unsupported(self, name: str) -> Iterator[str]:
        asked = {
            "os = windows": self.os != "linux",
            "gpus": bool(self.gpus),
            "gpu_types": bool(self.gpu_types),
            "tpu": self.tpu is not None,
            "mcp_servers": bool(self.mcp_servers),
            "skills_dir": bool(self.skills_dir),
        }
        yield from (f"{name}.{what}" for what, present in asked.items() if present)


class Collect(_Section):
    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: str | Whole | None = None

    @field_validator("service")
    @classmethod
    def _service_name(cls, value: str) -> str:
        return _service(value)


class Verifier(_Network):
    timeout_sec: Seconds = 600.0
    env: Variables = {}
    user: str | Whole | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = []

    @model_validator(mode="after")
    def _one_environment(self) -> Verifier:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode = 'shared' excludes [verifier.environment]")
        return self

    @property
    def separate(self) -> bool:
        return self.environment_mode == "separate" or self.environment is not None

    def unsupported(self, name: str, agent: str | int | None) -> Iterator[str]:
        """`agent`: the one user of the agent's container."""
        if self.environment is not None:
            yield from self.environment.unsupported(f"{name}.environment")
        if any(one.service != "main" for one in self.collect):
            yield f"{name}.collect.service other than main"
        if any(one.user is not None and str(one.user) != str(agent) for one in self.collect):
            yield f"{name}.collect.user other than agent.user"

    def network(self, name: str) -> Iterator[str]:
        yield from self.wishes(name)
        if self.environment is not None:
            yield from self.environment.network(f"{name}.environment")


class Solution(_Section):
    env: Variables = {}


class Artifact(_Section):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    @model_validator(mode="after")
    def _stays_inside(self) -> Artifact:
        if self.service is not None:
            _service(self.service)
        _no_way_up("source", self.source)
        if self.destination:
            _no_way_up("destination", self.destination)
            path = PurePosixPath(self.destination)
            if path.is_absolute() or not path.parts or "\\" in self.destination:
                raise ValueError(f"destination: {self.destination!r} is not a relative path")
            if self.destination.rstrip("/") == "manifest.json":
                raise ValueError("destination: manifest.json is reserved")
        if self.service not in (None, "main") and not self.source.startswith("/"):
            raise ValueError(f"source: {self.source!r} from a service must be an absolute path")
        return self


class Author(_Section):
    name: str
    email: str | None = None


class Package(_Section):
    name: str
    version: Annotated[str, Field(min_length=1)] | None = None
    description: str = ""
    authors: list[Author] = []
    keywords: list[str] = []

    @field_validator("name")
    @classmethod
    def _org_and_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value) or ".." in value:
            raise ValueError(f"{value!r} is not a name such as org/name")
        return value


class Step(_Section):
    name: str
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[str | Artifact] = []

    @field_validator("name")
    @classmethod
    def _portable(cls, value: str) -> str:
        bad = not value.strip() or value in (".", "..") or value.endswith((".", " ")) or _STEP_BAD.search(value)
        if bad or _DEVICE.fullmatch(value.partition(".")[0].rstrip(" ")) or len(value.encode()) > 255:
            raise ValueError(f"{value!r} cannot be a folder's name everywhere")
        return value


class LegoMetadata(BaseModel):
    """`[metadata.lego]`: what lego needs and Harbor has no word for. `roots` are the absolute paths whose changes
    are submitted; `protected` replaces the default list of paths that a submission may not change. `stage` is the stage
    of the Dockerfile that is built, and `over` what is laid over it at the start (see lego.tasks.overlay). `grader`
    says what the reward is made of (docs/graders.md); pytest-ids finds its tests' names in tests/names.json. With
    `freeze` the tests find what they would install (lego.tasks.installs)."""

    model_config = ConfigDict(extra="forbid")
    roots: list[str] = []
    protected: list[Annotated[str, AfterValidator(pattern)]] | None = None
    stage: str = ""
    over: list[str] = []
    grader: Literal["harbor", "pytest-ids", "command"] = "harbor"
    freeze: bool = True


class TaskToml(_Section):
    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = {}
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    environment: Environment = Field(default_factory=Environment)
    solution: Solution = Field(default_factory=Solution)
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[Step] | None = None
    artifacts: list[str | Artifact] = []

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and "version" in data:
            data = dict(data)
            data.setdefault("schema_version", data.pop("version"))
            data.pop("version", None)
        return data

    @field_validator("steps")
    @classmethod
    def _distinct(cls, steps: list[Step] | None) -> list[Step] | None:
        keys = [unicodedata.normalize("NFC", step.name).casefold() for step in steps or []]
        if len(set(keys)) != len(keys):
            raise ValueError("two steps have the same name, or names that differ only in case")
        return steps

    @field_validator("artifacts")
    @classmethod
    def _no_ways_up(cls, artifacts: list[str | Artifact]) -> list[str | Artifact]:
        for one in artifacts:
            if isinstance(one, str):
                _no_way_up("source", one)
        return artifacts

    def unsupported(self) -> list[str]:
        """What the file asks for and lego cannot give, each in words that name the key."""
        asked = {
            "artifacts with a service other than main": any(
                isinstance(one, Artifact) and one.service not in (None, "main")
                for one in [*self.artifacts, *(each for step in self.steps or () for each in step.artifacts)]
            ),
            "steps.agent.user other than agent.user": any(
                step.agent.user is not None and str(step.agent.user) != str(self.agent.user)
                for step in self.steps or ()
            ),
        }
        return [
            *self.environment.unsupported("environment"),
            *self.verifier.unsupported("verifier", self.agent.user),
            *(
                wish
                for number, step in enumerate(self.steps or ())
                for wish in step.verifier.unsupported(f"steps.{number}.verifier", self.agent.user)
            ),
            *(name for name, present in asked.items() if present),
        ]

    def network_wishes(self) -> list[str]:
        """Where the file explicitly asks for more network than a sealed sandbox gives."""
        return [
            *self.environment.network("environment"),
            *self.agent.wishes("agent"),
            *self.verifier.network("verifier"),
            *(
                wish
                for number, step in enumerate(self.steps or ())
                for part, name in ((step.agent.wishes, "agent"), (step.verifier.network, "verifier"))
                for wish in part(f"steps.{number}.{name}")
            ),
        ]

    def unknown_keys(self) -> list[str]:
        """Dotted keys that the format does not have (Harbor ignores them), and those that mean nothing here."""
        found = list(unknown(self, ""))
        if self.multi_step_reward_strategy and not self.steps:
            found.append("multi_step_reward_strategy (there are no steps)")
        return found


def _service(value: str) -> str:
    if not _SERVICE.fullmatch(value.strip()):
        raise ValueError(f"service: {value!r} is not the name of a service")
    return value.strip()


def _no_way_up(what: str, path: str) -> None:
    if ".." in PurePosixPath(path).parts:
        raise ValueError(f"{what}: {path!r} must not contain '..'")
