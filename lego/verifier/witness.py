"""What is seen of a test run from beside it: how test.sh ended, what it left running, and what its pytest did.

A reward file and an exit code can be had without one test being run. This is the evidence that they were: a shell that
starts test.sh, says how it ended and which processes outlived it; and a plug-in that any pytest in the container
loads, under a name that no file of the submission can have. Code under test that runs as the same user as the tests can
forge all of it; what it takes to do so leaves traces in the submission (lego/verifier/reaches.py).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lego.sandbox.layers import Entry

_FOLDER = "/opt/lego-witness"
_PLUGIN = Path(__file__).with_name("witness_plugin.py")
_LEFT = 8
_LONGEST = 200
# Far more than any run of pytest says, and what is read in a moment.
_LINES = 100_000
_NAMES = ("missed", "patched", "plugins")
_RC = re.compile(r"[0-9]{1,3}")
_MOST = 1 << 31
# Only what every /bin/sh has built in: the image may hold nothing else. A zombie is no process that was left.
# Nor is one that was there before: the environment's own service.
_SCRIPT = """before=
for p in /proc/[0-9]*; do before="$before $p "; done
"$1" > "$2" 2>&1
rc=$?
printf '%s ended %s\\n' "$3" "$rc"
for p in /proc/[0-9]*; do
  case "$before" in *" $p "*) continue ;; esac
  if read -r line < "$p/stat"; then
    case "$line" in
      *') Z '*) ;;
      *) printf '%s left %s\\n' "$3" "$line" ;;
    esac
  fi
done 2> /dev/null
exit $rc
"""


@dataclass(frozen=True)
class Seen:
    """What a run of the tests showed.

    rc: test.sh's exit code, None where it, or who watched it, was killed. left: processes that outlived it, by name.
    sessions, unfinished: pytest runs that began, and those of them that never came to their end. status: the exit
    statuses of the others. passed, failed: tests over all sessions. missed: tests skipped or expected to fail, by
    name. patched: functions of the test runner that were exchanged while it ran. plugins: plug-ins it got meanwhile.
    reached: how code took hold of what runs it (frames, all objects, files of its own process), "FILE: HOW".
    rewritten: files of the tests that are others now. rewards: reward files that no file of the tests speaks of.
    """

    rc: int | None
    left: tuple[str, ...] = ()
    sessions: int = 0
    unfinished: int = 0
    status: tuple[int, ...] = ()
    passed: int = 0
    failed: int = 0
    missed: tuple[str, ...] = ()
    patched: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    rewards: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a verdict's detail."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Seen:
        """The inverse of `as_dict`, also after it went through JSON."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        return cls(**values)


class Witness:
    """One run's witness: what to lay into its container, its environment and command, and what it saw."""

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(8)
        self._module = f"lego_{self._nonce}"
        self.report = f"/tmp/lego-{self._nonce}"

    def entries(self) -> list[Entry]:
        """Files to lay over the image; the report may be written by any user that the tests run as."""
        module = self._module
        meta = f"{_FOLDER}/{module}-1.dist-info"
        return [
            Entry(_FOLDER, "dir", 0o755),
            Entry(f"{_FOLDER}/{module}.py", "file", 0o644, _PLUGIN.read_bytes()),
            Entry(f"{meta}/METADATA", "file", 0o644, f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n".encode()),
            Entry(f"{meta}/entry_points.txt", "file", 0o644, f"[pytest11]\n{module} = {module}\n".encode()),
            Entry(self.report, "file", 0o666),
        ]

    def env(self, path: str) -> dict[str, str]:
        """`path`: the PYTHONPATH that the tests would have without it. A Python that ignores this variable loads no
        plug-in, and its tests run as ever, unless they are run by a grader that knows of LEGO_WITNESS_PLUGIN."""
        return {
            "PYTHONPATH": f"{path}:{_FOLDER}" if path else _FOLDER,
            "LEGO_WITNESS": self.report,
            "LEGO_WITNESS_PLUGIN": f"{_FOLDER}/{self._module}.py",
        }

    def command(self, script: str, log: str) -> list[str]:
        """Runs `script`, its output going to the file `log`."""
        return ["/bin/sh", "-c", _SCRIPT, "lego-verify", script, log, self._nonce]

    def read(self, stdout: bytes, report: bytes | None) -> Seen:
        """What was seen, from the command's own output and the report's content."""
        rc: int | None = None
        left: list[str] = []
        for line in stdout.decode(errors="replace").splitlines():
            nonce, _, said = line.partition(" ")
            kind, _, what = said.partition(" ")
            if nonce != self._nonce:
                continue
            if kind == "ended" and _RC.fullmatch(what):
                rc = int(what)
            elif kind == "left":
                left.append(what[what.find("(") + 1 : what.rfind(")")])
        killed = rc is None or 128 < rc <= 192  # as a shell says by which signal
        return Seen(None if killed else rc, tuple(left[:_LEFT]), **_sessions(report or b""))


def _number(value: object) -> int:
    """A whole number as a test runner may say it. Raises ValueError for anything else: code under test can write here
    too."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MOST:
        raise ValueError(f"{value!r:.20} is no count")
    return value


def _sessions(report: bytes) -> dict[str, Any]:
    """A report of more lines than any pytest writes counts as a session without an end: who wrote them may have written
    what stands before, and hidden what comes after."""
    lines = report.split(b"\n", _LINES)
    more = len(lines) > _LINES and lines.pop() != b""
    begun: list[int] = []
    reached: set[str] = set()
    ended: list[dict[str, Any]] = []
    for line in lines:
        try:
            pid, kind, what = json.loads(line)
            if kind == "begun":
                begun.append(_number(pid))
            elif kind == "reached":
                reached.add(str(what)[:_LONGEST])
            elif kind == "ended":
                ended.append(
                    {
                        "status": _number(what["status"]),
                        "counts": {str(name): _number(count) for name, count in what["counts"].items()},
                        **{key: [str(name)[:_LONGEST] for name in what[key]] for key in _NAMES},
                    }
                )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue

    def together(key: str) -> tuple[str, ...]:
        return tuple(sorted({name for session in ended for name in session[key]}))

    def count(*outcomes: str) -> int:
        return sum(session["counts"].get(outcome, 0) for session in ended for outcome in outcomes)

    return {
        "sessions": len(begun),
        "unfinished": max(len(begun) - len(ended), 0) + more,
        "status": tuple(session["status"] for session in ended),
        "passed": count("passed", "xpassed"),
        "failed": count("failed"),
        "missed": together("missed"),
        "patched": together("patched"),
        "plugins": together("plugins"),
        "reached": tuple(sorted(reached)),
    }
