"""What a task's test.sh would install before it tests: read off its text, so that it can be had without a network.

Only commands that install, or that fetch something, are looked at. What is understood is listed; what would need a
network and is not understood is named, and the task refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lego.tasks.task import Tree

UV = "0.9.5"
"""The uv of scripts that do not say which."""

_HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
_ASSIGNED = re.compile(r"\w+=")
_BEFORE = {"if", "then", "elif", "else", "do", "while", "until", "!", "{", "sudo", "exec", "time", "command", "eval"}
_URL = re.compile(r"(?:https?|ftp)://([^/\s:\"']+)")
_UV_INSTALLER = re.compile(r"https://astral\.sh/uv/(?:(\d[\w.]*)/)?install\.sh")
_HERE = {"localhost", "127.0.0.1", "0.0.0.0", "[::1]"}
# What uv and pip are told in two words.
_ELSEWHERE = {
    "-i", "--index-url", "--index", "--default-index", "--extra-index-url", "-f", "--find-links", "--with-editable",
    "-c", "--constraint", "--constraints",
}  # fmt: skip
_VALUED = _ELSEWHERE | {
    "-p", "--python", "-t", "--target", "--prefix", "--root", "--python-version", "--platform", "--progress-bar",
    "--timeout", "--retries", "--trusted-host", "--cache-dir", "--no-binary", "--only-binary", "--log",
    "--upgrade-strategy", "-o", "--group", "--extra", "--directory", "--project", "--link-mode", "--resolution",
    "--prerelease", "--env-file", "--keyring-provider",
}  # fmt: skip
_OTHERS = {
    "npm": {"install", "i", "ci"}, "pnpm": {"install", "add"}, "yarn": {"install", "add"}, "npx": None,
    "gem": {"install"}, "cargo": {"install"}, "go": {"install", "get"}, "apk": {"add"}, "yum": {"install"},
    "dnf": {"install"}, "conda": {"install", "create"}, "mamba": {"install", "create"}, "pipx": {"install", "run"},
    "poetry": {"install", "add"}, "git": {"clone", "fetch", "pull"}, "add-apt-repository": None,
}  # fmt: skip


@dataclass(frozen=True)
class Packages:
    """Python packages that are wanted together. `how`: uvx (`tool` names the one whose command is run), run (uv run),
    uv (uv pip, uv add) or pip. `python`: the version that is asked for, empty for the image's own."""

    how: Literal["uvx", "run", "uv", "pip"]
    requirements: tuple[str, ...]
    python: str = ""
    tool: str = ""


@dataclass(frozen=True)
class Installs:
    """`apt`: Debian packages, None where apt is not called; `uv`: which version, empty where uv is not called.
    `problems`: what cannot be had without a network, in words."""

    apt: tuple[str, ...] | None = None
    uv: str = ""
    packages: tuple[Packages, ...] = ()
    problems: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.apt is not None or bool(self.uv or self.packages)


@dataclass
class _Found:
    tests: Tree
    apt: list[str] | None = None
    uv: str = ""
    uv_called: bool = False
    packages: list[Packages] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def scan(tests: Tree) -> Installs:
    """What the shell scripts among a task's tests install."""
    found = _Found(tests)
    for name, file in sorted(tests.items()):
        if name.endswith(".sh"):
            for words in _commands(file.data.decode(errors="replace")):
                _take(words, found)
    uv = found.uv or (UV if found.uv_called else "")
    apt = None if found.apt is None else tuple(sorted(set(found.apt)))
    unique = tuple(dict.fromkeys(found.packages))
    return Installs(apt, uv, unique, tuple(dict.fromkeys(found.problems)))


def _commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, as words without their redirections."""
    for line in _logical_lines(text):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        skip = False
        for token in lexer:
            if set(token) <= set("<>&|;()") and token:
                if set(token) & set("<>"):
                    if words and words[-1].isdigit():
                        words.pop()
                    skip = True
                    continue
                yield words
                words, skip = [], False
            elif skip:
                skip = False
            else:
                words.append(token)
        yield words


def _logical_lines(text: str) -> Iterator[str]:
    """Lines with what continues them; without here-documents; as much at once as a quoted text takes."""
    lines = text.replace("\\\n", " ").splitlines()
    at = 0
    while at < len(lines):
        end = at + 1
        while not _whole("\n".join(lines[at:end])) and end < len(lines):
            end += 1
        whole = "\n".join(lines[at:end])
        if not _whole(whole):  # a quote that never closes: the line is no shell that can be read
            at += 1
            continue
        yield whole
        for _, word in _HEREDOC.findall(whole):
            closing = (number for number in range(end, len(lines)) if lines[number].strip() == word)
            end = next(closing, end - 1) + 1
        at = end


def _whole(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _take(words: list[str], found: _Found) -> None:
    while words and (words[0] in _BEFORE or _ASSIGNED.match(words[0])):
        words = words[1:]
    if not words:
        return
    name, rest = words[0].rpartition("/")[2], words[1:]
    if re.fullmatch(r"python[\d.]*", name) and rest[:2] == ["-m", "pip"]:
        name, rest = "pip", rest[2:]
    if name in ("apt-get", "apt"):
        _apt(rest, found)
    elif name in ("curl", "wget"):
        _fetch(name, rest, found)
    elif name == "uvx":
        _uvx(rest, found)
    elif name == "uv":
        _uv(rest, found)
    elif re.fullmatch(r"pip[\d.]*", name) and "install" in rest[:2]:
        _requirements("pip", rest[rest.index("install") + 1 :], found, "pip install")
    elif name in _OTHERS:
        wanted, said = _OTHERS[name], next((word for word in rest if not word.startswith("-")), "")
        if wanted is None or said in wanted:
            found.problems.append(" ".join([name, *rest[:2]]))


def _apt(rest: Sequence[str], found: _Found) -> None:
    found.apt = found.apt or []
    words, valued = [], False
    for word in rest:
        if valued:
            valued = False
        elif word in ("-o", "-t", "-c", "--option", "--target-release"):
            valued = True
        elif not word.startswith("-"):
            words.append(word)
    if words[:1] == ["install"]:
        for word in words[1:]:
            if re.fullmatch(r"[a-z0-9][a-z0-9.+:-]*(=[\w.+:~-]+)?(/\w+)?", word):
                found.apt.append(word)
            else:
                found.problems.append(f"apt-get install {word}")


def _fetch(name: str, rest: Sequence[str], found: _Found) -> None:
    for word in rest:
        if uv := _UV_INSTALLER.fullmatch(word):
            found.uv_called, found.uv = True, uv[1] or found.uv
        elif any(host not in _HERE and "$" not in host for host in _URL.findall(word)):
            found.problems.append(f"{name} {word}")


def _uvx(rest: Sequence[str], found: _Found) -> None:
    found.uv_called = True
    options, words = _until_command(rest)
    wanted = _withs(options, found, "uvx")
    tool = next((value for name, value in options if name == "--from"), words[0] if words else "")
    tool = re.sub(r"@(latest$)?", lambda at: "" if at[1] else "==", tool, count=1) if "://" not in tool else tool
    if not tool or not _sound(tool):
        found.problems.append(f"uvx {tool or 'of nothing'}")
    elif wanted is not None:
        found.packages.append(Packages("uvx", tuple(wanted), _python(options), tool))


def _uv(rest: Sequence[str], found: _Found) -> None:
    found.uv_called = True
    words = list(rest)
    while words and words[0].startswith("-"):
        words = words[1:]
    if words[:2] == ["tool", "run"]:
        _uvx(words[2:], found)
    elif words[:2] in (["tool", "install"], ["pip", "install"]):
        _requirements("uv", words[2:], found, f"uv {words[0]} install")
    elif words[:1] == ["add"]:
        _requirements("uv", words[1:], found, "uv add")
    elif words[:1] == ["run"]:
        options, _ = _until_command(words[1:])
        wanted = _withs(options, found, "uv run")
        if wanted:
            found.packages.append(Packages("run", tuple(wanted), _python(options)))
    elif words[:1] in (["sync"], ["lock"], ["self"]) or words[:2] in (["pip", "sync"], ["python", "install"]):
        found.problems.append(" ".join(["uv", *words[:2]]))


def _until_command(rest: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values, up to the first word that is neither, and the words from there on."""
    options: list[tuple[str, str]] = []
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        name, equals, value = rest[at].partition("=")
        at += 1
        if name == "--":
            break
        if not equals and (name in _VALUED or name in ("-w", "--with", "--from", "--with-requirements")):
            value = rest[at] if at < len(rest) else ""
            at += 1
        options.append((name, value))
    return options, list(rest[at:])


def _withs(options: Sequence[tuple[str, str]], found: _Found, command: str) -> list[str] | None:
    """The requirements of --with options; None where there are some that cannot be had."""
    wanted: list[str] = []
    for name, value in options:
        if name in _ELSEWHERE:
            found.problems.append(f"{command} {name}")
            return None
        if name == "--with-requirements":
            wanted += _listed(value, found, command)
        elif name in ("-w", "--with"):
            for one in re.split(r",\s*(?=[A-Za-z])(?![^\[]*\])", value):
                if not _sound(one):
                    found.problems.append(f"{command} {name} {one}")
                    return None
                wanted.append(one.strip())
    return wanted


def _requirements(how: Literal["uv", "pip"], rest: Sequence[str], found: _Found, command: str) -> None:
    wanted: list[str] = []
    python, at = "", 0
    while at < len(rest):
        name, equals, value = rest[at].partition("=")
        at += 1
        if not name.startswith("-"):
            word = rest[at - 1]
            if word.startswith((".", "/")):
                wanted += ["setuptools", "wheel"]  # what a project is built with
            elif _sound(word):
                wanted.append(word)
            else:
                found.problems.append(f"{command} {word}")
            continue
        if not equals and (name in _VALUED or name in ("-r", "--requirement", "--requirements")):
            value = rest[at] if at < len(rest) else ""
            at += 1
        if name in _ELSEWHERE:
            found.problems.append(f"{command} {name}")
        elif name in ("-r", "--requirement", "--requirements"):
            wanted += _listed(value, found, command)
        elif name in ("-p", "--python"):
            python = value
    if wanted:
        found.packages.append(Packages(how, tuple(wanted), python if re.fullmatch(r"[\d.]+", python) else ""))


def _listed(path: str, found: _Found, command: str) -> list[str]:
    """The requirements in a file of the tests."""
    file = found.tests.get(path.removeprefix("/tests/")) if path.startswith("/tests/") else None
    text = "" if file is None else file.data.decode(errors="replace")
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if file is None or not all(map(_sound, lines)):
        found.problems.append(f"{command} -r {path}")
        return []
    return lines


def _python(options: Sequence[tuple[str, str]]) -> str:
    version = next((value for name, value in options if name in ("-p", "--python")), "")
    return version.removeprefix("python")


def _sound(requirement: str) -> bool:
    """Whether it names a package of an index, by what is written."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*(\[[\w, .-]+\])?\s*([<>=!~]=?=?\s*[\w.*+!-]+\s*,?\s*)*", requirement))
