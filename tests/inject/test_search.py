"""The order of candidates, decisions in that order whatever the workers do, and going on after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import types

import pytest

from lego.errors import LegoError, SandboxError, StoreError
from lego.inject import search
from lego.inject.baseline import Baseline
from lego.inject.layout import Layout
from lego.inject.search import Search, candidates
from lego.inject.source import Project
from lego.inject.state import State
from lego.inject.trial import Tried
from lego.tasks.task import File

MODULE = "".join(
    f"def f{n}(a, b):\n    if a < {n}:\n        return a + b\n    return b - a\n\n\n" for n in range(12)
).encode()
PROJECT = Project("pkg", "1", {"a.py": File(MODULE)}, "", "")
LAYOUT = Layout(("t.py",), ("t.py",), ("a.py",), "", (), False)
BASELINE = Baseline(("t.py::one",), {}, {}, 1.0, {"a.py": {n: (0,) for n in range(1, 60)}}, ())


def test_the_seed_alone_decides_the_order():
    first = candidates(PROJECT, LAYOUT, BASELINE, 1)
    assert first == candidates(PROJECT, LAYOUT, BASELINE, 1)
    other = candidates(PROJECT, LAYOUT, BASELINE, 2)
    assert first != other and {one.id for one in first} == {one.id for one in other}


def test_each_function_once_before_any_twice():
    order = candidates(PROJECT, LAYOUT, BASELINE, 1)
    covered = {one.mutation.scope for one in order}
    assert {one.mutation.scope for one in order[: len(covered)]} == covered and len(covered) >= 9
    assert len({one.mutation.kind for one in order[: len(covered)]}) > 3


def test_lines_without_tests_give_none():
    assert candidates(PROJECT, LAYOUT, Baseline(("t.py::one",), {}, {}, 1.0, {}, ()), 1) == []


class Written:
    def __init__(self, full):
        self.tasks, self.full = [], full

    def write(self, task, out):
        if self.full(task.id):
            raise OSError(errno.ENOSPC, "No space left on device")
        self.tasks.append(task.id)


def never(*_):
    return False


def run(monkeypatch, folder, *, count, jobs, fails=never, opens=lambda number: True, full=never, seed=1):
    """A search whose trials end in a random order: kept where the id's first digit is even. `fails(name, time)` says
    whether a candidate loses its container when it is tried for the so manyth time, `opens(number)` whether a container
    comes up, `full(task)` whether there is no room for a task."""
    order = candidates(PROJECT, LAYOUT, BASELINE, 1)
    tried, opened, controls = [], [], []
    rng = random.Random(seed)
    monkeypatch.setattr(search, "_PAUSES", (0.0, 0.0))

    class Bug:
        def __init__(self, worker, project, layout, baseline, candidate):
            self.candidate = candidate

        async def control(self):
            controls.append(self.candidate.id)

        async def attempt(self):
            name = self.candidate.id
            tried.append(name)
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            if fails(name, tried.count(name)):
                raise SandboxError("gone")
            good = int(name[0], 16) % 2 == 0
            return Tried("kept", types.SimpleNamespace(id=f"pkg-{name}")) if good else Tried("no test notices")

    @contextlib.asynccontextmanager
    async def worker():
        opened.append(1)
        if not opens(len(opened)):
            raise SandboxError("image localhost/x is not in the store")
        yield object()

    monkeypatch.setattr(search, "Bug", Bug)
    state, writer = State(folder, 1, "key"), Written(full)
    told = []
    one = Search(PROJECT, LAYOUT, BASELINE, order, state, writer, folder, count, told.append)
    kept = asyncio.run(one.run(worker, jobs))
    assert kept == [decision.newest.task for decision in told if decision.newest.task]
    assert len(controls) == len(tried) - len(set(tried))
    return kept, writer.tasks, tried, len(opened)


@pytest.mark.parametrize("seed", range(4))
def test_workers_and_their_speed_change_nothing(monkeypatch, tmp_path, seed):
    alone = run(monkeypatch, tmp_path / "alone", count=9, jobs=1)[0]
    together = run(monkeypatch, tmp_path / "together", count=9, jobs=4, seed=seed)[0]
    assert len(alone) == 9 and together == alone


def test_it_goes_on_where_it_was_and_asking_for_more_keeps_the_first(monkeypatch, tmp_path):
    first, written, _, _ = run(monkeypatch, tmp_path, count=4, jobs=2)
    assert written == first
    # A kill in the middle of a line.
    log = tmp_path / "decisions-1.jsonl"
    log.write_bytes(log.read_bytes() + b'{"candidate": "12')
    more, written, tried, _ = run(monkeypatch, tmp_path, count=8, jobs=2)
    assert more[:4] == first and written == more[4:]
    assert not {name.removeprefix("pkg-") for name in first} & set(tried)
    again, written, tried, _ = run(monkeypatch, tmp_path, count=8, jobs=2)
    assert (again, written, tried) == (more, [], [])


def test_a_line_gives_one_task_at_most(monkeypatch, tmp_path):
    kept = run(monkeypatch, tmp_path, count=1000, jobs=3)[0]
    of = {f"pkg-{one.id}": one.mutation for one in candidates(PROJECT, LAYOUT, BASELINE, 1)}
    lines = [of[name].lines for name in kept]
    assert len(lines) == len(set(lines)) > 12


def reasons(folder):
    return {name: decision.reason for name, decision in State(folder, 1, "key").decisions.items()}


def test_a_bug_that_takes_down_every_container_costs_its_candidate_alone(monkeypatch, tmp_path):
    kept, _, tried, opened = run(
        monkeypatch, tmp_path, count=9, jobs=1, fails=lambda name, time: name.startswith("0")
    )  # fmt: skip
    assert len(kept) == 9 and all(not name.startswith("pkg-0") for name in kept)
    lost = [name for name, reason in reasons(tmp_path).items() if reason == "takes its container down"]
    assert lost and all(tried.count(name) == 3 for name in lost) and opened == 1 + 3 * len(lost)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_container_that_the_machine_takes_decides_nothing(monkeypatch, tmp_path, jobs):
    sound = run(monkeypatch, tmp_path / "sound", count=9, jobs=1)[0]
    struck, _, tried, _ = run(
        monkeypatch, tmp_path / "struck", count=9, jobs=jobs,
        fails=lambda name, time: time <= int(name[1], 16) % 3, opens=lambda number: number % 3,
    )  # fmt: skip
    assert struck == sound and max(tried.count(name) for name in tried) == 3
    assert "takes its container down" not in reasons(tmp_path / "struck").values()


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize(
    ("fault", "raised", "said"),
    [
        ({"opens": lambda n: n < 3, "fails": lambda name, _: name[0] == "0"}, SandboxError, "not in the store"),
        ({"full": lambda task: task[4] in "4c"}, StoreError, "No space left on device"),
    ],
    ids=["no-container", "no-room"],
)  # fmt: skip
def test_a_fault_that_stays_stops_the_search_and_changes_nothing(monkeypatch, tmp_path, jobs, fault, raised, said):
    sound = run(monkeypatch, tmp_path / "sound", count=14, jobs=1)[0]
    with pytest.raises(LegoError) as caught:
        run(monkeypatch, tmp_path / "struck", count=14, jobs=jobs, **fault)
    assert type(caught.value) is raised and caught.value.fault == "infra"
    assert said in caught.value.message and "the same command goes on" in caught.value.hint
    decided = reasons(tmp_path / "struck")
    assert decided and decided.items() < reasons(tmp_path / "sound").items()
    assert run(monkeypatch, tmp_path / "struck", count=14, jobs=jobs)[0] == sound
    assert reasons(tmp_path / "struck").items() >= reasons(tmp_path / "sound").items()


def test_another_key_forgets(tmp_path):
    state = State(tmp_path, 1, "key")
    state.decide(search.Decision("a", "kept", "logic", "pkg-a"))
    state.write("baseline.json", b"{}")
    assert State(tmp_path, 1, "key").decisions["a"].task == "pkg-a"
    assert State(tmp_path, 2, "key").decisions == {}
    assert State(tmp_path, 1, "other").decisions == {} and State(tmp_path, 1, "other").read("baseline.json") is None
