"""What a Harbor `task.toml` may say (schema 1.x), as models; what lego cannot honour is listed by name."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

NetworkMode = Literal["public", "no-network", "allowlist"]


class _Section(BaseModel):
    """Harbor ignores keys it does not know; they are kept here so that validation can name them."""

    model_config = ConfigDict(extra="allow")


class Phase(_Section):
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    user: str | int | None = None


class Agent(Phase):
    timeout_sec: PositiveFloat | None = None


class Verifier(Phase):
    timeout_sec: PositiveFloat = 600.0
    env: dict[str, str] = {}
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: list[dict[str, Any]] = []


class Environment(_Section):
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None
    build_timeout_sec: PositiveFloat = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: PositiveFloat | None = None
    memory_mb: PositiveInt | None = None
    storage_mb: PositiveInt | None = None
    memory: str | None = None
    storage: str | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None
    allow_internet: bool | None = None


class Solution(_Section):
    env: dict[str, str] = {}


class Artifact(_Section):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None


class Package(_Section):
    name: str
    version: str | None = None
    description: str = ""
    keywords: list[str] = []


class LegoMetadata(_Section):
    """`[metadata.lego]`: what lego needs and Harbor has no word for. `roots` are the absolute paths whose changes
    are submitted; `protected` replaces the default list of paths that a submission may not change. `stage` is the stage
    of the Dockerfile that is built, and `over` what is laid over it at the start (see lego.tasks.overlay). `grader`
    says what the reward is made of (docs/graders.md); pytest-ids finds its tests' names in tests/names.json."""

    model_config = ConfigDict(extra="forbid")
    roots: list[str] = []
    protected: list[str] | None = None
    stage: str = ""
    over: list[str] = []
    grader: Literal["harbor", "pytest-ids", "command"] = "harbor"


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
    steps: list[dict[str, Any]] | None = None
    artifacts: list[str | Artifact] = []

    def unsupported(self) -> list[str]:
        """What the file asks for and lego cannot give, each in words that name the key."""
        env, verifier = self.environment, self.verifier
        asked = {
            "steps (a multi-step task)": bool(self.steps),
            "environment.os = windows": env.os != "linux",
            "environment.gpus": bool(env.gpus),
            "environment.gpu_types": bool(env.gpu_types),
            "environment.tpu": env.tpu is not None,
            "environment.mcp_servers": bool(env.mcp_servers),
            "environment.skills_dir": bool(env.skills_dir),
            "environment.healthcheck": env.healthcheck is not None,
            "verifier.environment_mode = separate": verifier.environment_mode == "separate",
            "verifier.environment (a separate verifier image)": (
                verifier.environment is not None and verifier.environment_mode != "shared"
            ),
            "verifier.collect": bool(verifier.collect),
            "artifacts with a service other than main": any(
                isinstance(one, Artifact) and one.service not in (None, "main") for one in self.artifacts
            ),
        }
        return [name for name, present in asked.items() if present]

    def network_wishes(self) -> list[str]:
        """Where the file explicitly asks for more network than a sealed sandbox gives."""
        wishes = []
        for name, phase in (("environment", self.environment), ("agent", self.agent), ("verifier", self.verifier)):
            if phase.network_mode in ("public", "allowlist"):
                wishes.append(f"{name}.network_mode = {phase.network_mode}")
            if phase.allowed_hosts:
                wishes.append(f"{name}.allowed_hosts")
        if self.environment.allow_internet:
            wishes.append("environment.allow_internet = true")
        return wishes

    def unknown_keys(self) -> list[str]:
        """Dotted keys that the format does not have (Harbor ignores them)."""
        found = [key for key in (self.model_extra or {}) if key != "version"]
        for name in ("task", "agent", "verifier", "environment", "solution"):
            section = getattr(self, name)
            found += [f"{name}.{key}" for key in (section.model_extra or {} if section else {})]
        return [key for key in found if key != "task.authors"]
