# ruff: noqa: UP006, UP035, UP045
"""Runs inside the verification container, loaded by whatever pytest runs there: it says what that pytest did.

It is there for what an exit code and a reward file cannot show: a test run that was left half way, tests that were
skipped, a test runner whose parts were exchanged, code that took hold of what runs it. What is said of the last is said
before it is done. Standard library only, Python 3.6 and newer; it fails no test run.

PYTEST_DONT_REWRITE: that it is there already, where a grader loads it, is nothing to warn of.
"""

import json
import os
import re
import sys
import threading
import types
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

_WATCHED = (
    "_pytest.runner",
    "_pytest.reports",
    "_pytest.python",
    "_pytest.main",
    "_pytest.junitxml",
    "_pytest.terminal",
    "_pytest.unittest",
    "pluggy._callers",
    "pluggy._hooks",
    "pluggy._manager",
    "unittest.case",
)
_MOST = 200
# The ways in Python to a frame, to all objects, or to the code of a function that are announced. A signal handler is
# given a frame without being announced: nothing that decides may lie in one while code under test runs.
_REACHES = (
    "gc.get_objects",
    "gc.get_referrers",
    "gc.get_referents",
    "sys._getframe",
    "sys._current_frames",
    "sys._current_exceptions",
    "sys.settrace",
    "sys.setprofile",
    "sys.monitoring.register_callback",
)
_ATTRIBUTES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame", "__closure__", "__code__")
_FILES = ("open", "os.listdir", "os.scandir")
_ASKED = frozenset((*_REACHES, *_FILES, "ctypes.dlsym"))
_PROCESS = re.compile(r"/proc/(?:self|thread-self|\d+)/(?:task/\d+/)?(mem|fd|environ|maps)\b")
# What only hands on a frame, or what it holds, in the name of who asked for it: functions of the standard library, and
# the files in it that they stand in. Another's function may have any name.
_HANDS = ("inspect.py", "traceback.py", os.path.join("logging", "__init__.py"), os.path.join("ctypes", "__init__.py"))
_HANDS_ON = (
    "currentframe",
    "stack",
    "trace",
    "getouterframes",
    "getinnerframes",
    "walk_tb",
    "walk_stack",
    "getgeneratorlocals",
    "getcoroutinelocals",
    "getasyncgenlocals",
    "getclosurevars",
    "<lambda>",
    "__getattr__",
    "__getitem__",
)
_ORDER = ("passed", "xpassed", "xfailed", "skipped", "failed")


_through: List[Callable[[bytes], None]] = []


def through(tell: Callable[[bytes], None]) -> None:
    """For a grader that loads this itself: the lines go to its function, which seals what it was told."""
    _through.append(tell)


def pytest_configure(config: Any) -> None:
    path = os.environ.get("LEGO_WITNESS")
    inner = "PYTEST_CURRENT_TEST" in os.environ or "PYTEST_XDIST_WORKER" in os.environ
    if path and not inner:
        os.environ.pop("LEGO_WITNESS")
        tell = _through.pop() if _through else None
        config.pluginmanager.register(_Witness(path, config, tell), "lego-witness")


class _Witness:
    def __init__(self, path: str, config: Any, tell: Optional[Callable[[bytes], None]]) -> None:
        self._tell, self._dumps = tell, json.dumps
        self._path, self._pid, self._config = path, os.getpid(), config
        self._outcomes: Dict[str, str] = {}
        self._code = {**_snapshot(), **_EARLY}
        self._plugins = set(_plugins(config))
        self._hooks: Dict[str, Any] = {}
        self._say("begun", {})
        if hasattr(sys, "addaudithook"):
            sys.addaudithook(_guard(lambda what: self._say("reached", what), (path, os.path.dirname(__file__))))

    def pytest_collection(self) -> None:
        self._code, self._plugins = {**_snapshot(), **self._code}, set(_plugins(self._config))
        self._hooks = dict(_hooks(self._config))

    def pytest_runtest_logreport(self, report: Any) -> None:
        outcome = report.outcome
        if getattr(report, "wasxfail", None) is not None:
            outcome = "xpassed" if outcome == "passed" else "xfailed"
        before = self._outcomes.get(report.nodeid, "passed")
        self._outcomes[report.nodeid] = max(before, outcome, key=_ORDER.index)

    def pytest_sessionfinish(self, session: Any, exitstatus: int) -> None:
        by_outcome: Dict[str, List[str]] = {}
        for name, outcome in self._outcomes.items():
            by_outcome.setdefault(outcome, []).append(name)
        code, hooks = _snapshot(), dict(_hooks(self._config))
        patched = {name for name, what in self._code.items() if code.get(name) != what}
        patched |= {name for name, what in self._hooks.items() if hooks.get(name, what) is not what}
        patched |= set(_overridden(getattr(session, "items", ())))
        self._say(
            "ended",
            {
                "status": int(exitstatus),
                "counts": {outcome: len(names) for outcome, names in by_outcome.items()},
                "missed": sorted(by_outcome.get("skipped", []) + by_outcome.get("xfailed", []))[:_MOST],
                "patched": sorted(patched)[:_MOST],
                "plugins": sorted(set(_plugins(self._config)) - self._plugins)[:_MOST],
            },
        )

    def _say(self, kind: str, what: Any) -> None:
        if os.getpid() != self._pid:
            return
        line = self._dumps([self._pid, kind, what]) + "\n"
        try:
            if self._tell is not None:
                self._tell(line.encode())
                return
            # Tasks made by an earlier lego bring a grader that seals nothing of what is said here.
            if self._path.startswith("fd:"):
                os.write(int(self._path[3:]), line.encode())
                return
            with open(self._path, "a") as file:
                file.write(line)
        except OSError:
            pass


def _plugins(config: Any) -> Iterator[str]:
    """Plug-ins by name; those without one of their own by what they are."""
    for name, plugin in config.pluginmanager.list_name_plugin():
        if plugin is not None and not str(name).endswith("conftest.py"):
            yield type(plugin).__name__ if str(name).isdigit() else str(name)


def _hooks(config: Any) -> Iterator[Tuple[str, Any]]:
    """What is called for each hook, by hook and plug-in."""
    for hook, caller in list(vars(config.pluginmanager.hook).items()):
        for each in caller.get_hookimpls() if hasattr(caller, "get_hookimpls") else ():
            yield f"{hook} of {each.plugin_name}", each.function


def _overridden(items: Any) -> Iterator[str]:
    """Methods of tests that were replaced for one test alone."""
    for item in items:
        for name in list(vars(item)):
            if isinstance(getattr(type(item), name, None), types.FunctionType):
                yield f"{name} of a test"


def _guard(say: Callable[[str], None], own: Tuple[str, ...]) -> Callable[[str, Any], None]:
    """A hook for sys.addaudithook that says who reaches for what, each once."""
    standard, runner = (os.path.dirname(str(sys.modules[name].__file__)) for name in ("os", "_pytest"))
    trusted = (standard + os.sep, os.path.dirname(runner) + os.sep, "<frozen ", __file__)
    hands = tuple(os.path.join(standard, name) for name in _HANDS)
    root = os.getcwd() + os.sep
    busy: Set[int] = set()
    said: Set[str] = set()

    def reach(event: str, args: Any) -> str:
        if event in _REACHES:
            return event
        if event in ("object.__getattr__", "object.__setattr__"):
            name = args[1]
            return name if name in _ATTRIBUTES and (name != "__code__" or event == "object.__setattr__") else ""
        if event == "ctypes.dlsym":
            name = str(args[1])
            return f"ctypes: {name}" if name.startswith(("Py", "_Py")) else ""
        path = os.fsdecode(args[0]) if args and not isinstance(args[0], int) else ""
        process = _PROCESS.match(path)
        return f"/proc/*/{process.group(1)}" if process else "the witness" if path.startswith(own) else ""

    def hook(event: str, args: Any) -> None:
        if event not in _ASKED and not event.startswith("object.__"):
            return
        me = threading.get_ident()
        if me in busy or len(said) >= _MOST:
            return
        busy.add(me)
        try:
            what = reach(event, args)
            frame: Any = sys._getframe(1) if what else None
            while frame is not None and _hands_on(frame.f_code, hands):
                frame = frame.f_back
            if frame is None:
                return
            file = frame.f_code.co_filename
            if not file.startswith(trusted):
                line = f"{file[len(root) :] if file.startswith(root) else os.path.basename(file)}: {what}"
                if line not in said:
                    said.add(line)
                    say(line)
        except Exception:
            return
        finally:
            busy.discard(me)

    return hook


def _hands_on(code: types.CodeType, hands: Tuple[str, ...]) -> bool:
    return code.co_name in _HANDS_ON and code.co_filename in hands


def _snapshot() -> Dict[str, Tuple[int, int]]:
    """The functions of the test runner, by name, as the code that each one runs."""
    found: Dict[str, Tuple[int, int]] = {}
    for module in _WATCHED:
        for name, value in list(vars(sys.modules.get(module, object)).items()):
            if isinstance(value, type) and value.__module__ == module:
                for part, inner in list(vars(value).items()):
                    _note(found, f"{module}.{name}.{part}", inner)
            else:
                _note(found, f"{module}.{name}", value)
    return found


def _note(found: Dict[str, Tuple[int, int]], name: str, value: Any) -> None:
    # No attribute is asked of what may make one up: pytest.mark warns of unknown names, and a warning may be an error.
    if isinstance(value, (classmethod, staticmethod, types.MethodType)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    if isinstance(value, types.FunctionType):
        found[name] = (id(value), id(value.__code__))


# Before any file of the project, its conftest files included, could exchange something.
_EARLY = _snapshot()
