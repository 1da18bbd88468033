"""Verification: a submission, a fresh container, the hidden tests, and a verdict.

A fault is infrastructure only on evidence that the submission cannot produce: podman failing, or a control (the
task's own solution, or the pristine state where there is none) failing in the same way at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lego.clock import TrialClock
from lego.errors import SandboxError, VerifierError
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec, Limits
from lego.sandbox.ending import Ending, refuse_unhealthy
from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Submission, collect, task_roots
from lego.tasks.task import File, Task, Tree
from lego.verifier.graders import READ_CAP, REWARD_JSON, REWARD_TEXT, TEST_LOG
from lego.verifier.graders_open import open_grader
from lego.verifier.likeness import marks
from lego.verifier.reaches import reaches
from lego.verifier.tamper import findings, forged, runtime
from lego.verifier.verdict import Outcome, Verdict
from lego.verifier.witness import Seen, Witness

_LOG_CAP = 1 << 20
_TESTS_CAP = 4 << 20
_REWARDS = (REWARD_JSON, REWARD_TEXT)
# Enough for a test.sh to run the code under test as another user than the one that writes the reward.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
_PYCACHE = "/tmp/lego-pycache"


@dataclass(frozen=True)
class Oracle:
    """Stands for the submission that the task's own solution makes."""


@dataclass(frozen=True)
class Nothing:
    """Stands for the submission of an agent that did nothing."""


Candidate = Submission | Oracle | Nothing
"""What can be graded."""


@dataclass(frozen=True)
class _Run:
    """One run of the tests: `reward` None where they gave none, and `why`. `seen`: what it showed from beside."""

    reward: float | None
    why: str
    ending: Ending
    log: bytes
    seen: Seen
    detail: Mapping[str, Any] = field(default_factory=dict)


async def verify(
    podman: Podman,
    task: Task,
    image: str,
    candidate: Candidate,
    limits: Limits,
    timeout: float | None = None,
    *,
    known: Seen | None = None,
    run_id: str = "",
    trial: str = "",
) -> Verdict:
    """Grade a submission by the task's hidden tests in a fresh container without network.

    `timeout` in seconds of wall clock; None means what the task says. `known`: what was seen when the tests passed with
    the task's own solution; where it is not known and a paying run looks odd, the solution is run now to compare, and
    detail["gold_seen"] is what that showed. Infrastructure faults come back as outcome `error` with no reward; so does
    a submission without reward when the control shows that the task is at fault. An Oracle's detail says which paths it
    `changed` and marks its new `lines`. Raises VerifierError where the task has no solution and Oracle was asked for.
    """
    begun = time.monotonic()
    bench = _Bench(podman, task, image, limits, timeout or task.verifier_timeout, run_id, trial)
    trust = open_grader(task).trust
    try:
        submission = await _submission(bench, candidate)
        run = await bench.tests(submission)
        controlled = run.reward is None and run.ending.reason != "lost"
        control = await bench.control() if controlled else None
        watched = isinstance(candidate, Submission)
        found = runtime(run.seen, run.reward, known) if watched else ()
        if found and known is None:
            known = await bench.gold_seen()
            found = runtime(run.seen, run.reward, known)
    except SandboxError as error:
        return Verdict(
            "error",
            None,
            {"reason": error.message, "fault": error.fault},
            trust=trust,
            seconds=time.monotonic() - begun,
        )
    verdict = _judge(run, controlled, control)
    if isinstance(candidate, Oracle):
        verdict.detail["changed"] = sorted(submission.paths())
        verdict.detail["lines"] = marks(submission)
    if not watched:
        return replace(verdict, trust=trust, log=run.log, seconds=time.monotonic() - begun)
    if known is not None and found:
        verdict.detail["gold_seen"] = known.as_dict()
    why = forged(found)
    if why:
        verdict = Verdict("broken", 0.0, {**verdict.detail, "reason": f"the tests gave {run.reward:g}, but {why}"})
    tamper = (*findings(submission), *reaches(submission), *found)
    return replace(verdict, tamper=tamper, trust=trust, log=run.log, seconds=time.monotonic() - begun)


async def _submission(bench: _Bench, candidate: Candidate) -> Submission:
    if isinstance(candidate, Oracle):
        return await bench.gold()
    return bench.nothing() if isinstance(candidate, Nothing) else candidate


class _Bench:
    """One task's fresh containers."""

    def __init__(
        self, podman: Podman, task: Task, image: str, limits: Limits, timeout: float, run_id: str, trial: str
    ) -> None:
        self._podman, self._task, self._image = podman, task, image
        self._limits, self._timeout, self._run_id, self._trial = limits, timeout, run_id, trial

    async def gold(self) -> Submission:
        task = self._task
        if "solve.sh" not in task.solution:
            raise VerifierError(
                f"task {task.id} has no solution/solve.sh",
                fault="task",
                hint="a task without a solution cannot be checked, and is not trained on",
            )
        async with open_box(self._podman, self._spec(task.agent_user or "", "oracle")) as box:
            box.put(_under("/solution", task.solution, "solve.sh"))
            box.lay([Entry("/logs/agent", "dir", 0o777)])
            env = {"DEBIAN_FRONTEND": "noninteractive", **task.solution_env}
            ending = await box.run(
                ["/solution/solve.sh"], env=env, clock=TrialClock(max(self._timeout, task.agent_timeout or 0))
            )
            refuse_unhealthy(ending, "the solution")
            if ending.reason != "exit":
                raise VerifierError(
                    f"the solution of task {task.id} did not end by itself: {ending.reason}",
                    fault="infra" if ending.reason == "lost" else "task",
                )
            return await collect(box, task_roots(self._podman, task, self._image), trusted=True)

    async def tests(self, submission: Submission) -> _Run:
        task = self._task
        grader = open_grader(task)
        async with open_box(self._podman, self._spec(task.verifier_user or "", "verify", CAPABILITIES)) as box:
            submission.apply_to(box)
            hidden = hidden_tests(task)
            box.put(hidden)
            box.put(grader.files())
            box.lay([Entry(path, "deleted") for path in (REWARD_JSON, REWARD_TEXT, TEST_LOG)])
            box.lay([Entry(path, "dir", 0o777) for path in ("/logs/verifier", "/logs/agent", "/logs/artifacts")])
            witness = Witness()
            box.lay(witness.entries())
            env = {"PYTHONPYCACHEPREFIX": _PYCACHE, **task.verifier_env, **grader.env()}
            env |= witness.env(env.get("PYTHONPATH") or self._python_path())
            command = witness.command("/tests/test.sh", TEST_LOG)
            ending = await box.run(command, env=env, clock=TrialClock(self._timeout), output_limit=64 << 10)
            if ending.reason == "lost":
                raise SandboxError("the container vanished while the tests ran")
            files = await box.read([*grader.reads, TEST_LOG, witness.report], READ_CAP)
            now = await box.read(sorted(hidden), _TESTS_CAP)
        seen = replace(
            witness.read(ending.stdout, files[witness.report]),
            rewritten=tuple(path for path, file in sorted(hidden.items()) if file.data[:_TESTS_CAP] != now[path]),
            rewards=tuple(
                path for path in _REWARDS if files.get(path) is not None and not _spoken_of(path, task.tests)
            ),
        )
        reward = grader.reward(files, seen.rc)
        detail: dict[str, Any] = {"rc": ending.rc, "ending": ending.reason, **dict(ending.evidence)}
        detail |= {"seen": seen.as_dict(), **reward.detail}
        if reward.parts:
            detail["parts"] = dict(reward.parts)
        log = (files[TEST_LOG] or ending.stdout + ending.stderr)[:_LOG_CAP]
        if ending.reason == "unhealthy":
            words = " ".join(ending.stdout[-300:].decode(errors="replace").split())
            return _Run(None, f"the health check failed before the tests began: {words}", ending, log, seen, detail)
        # A hang is no verdict, even if some reward was written before it: the tests were not done.
        if ending.reason != "exit":
            return _Run(None, f"the tests did not end by themselves: {ending.reason}", ending, log, seen, detail)
        # So is a test.sh that was killed, whatever it, or its killer, had written by then.
        if seen.rc is None:
            return _Run(None, "the tests did not end by themselves: test.sh was killed", ending, log, seen, detail)
        return _Run(reward.value, reward.why, ending, log, seen, detail)

    def _python_path(self) -> str:
        """PYTHONPATH as the container itself has it."""
        environment, image = self._task.environment.env, self._podman.image(self._image).env
        return environment.get("PYTHONPATH") or image.get("PYTHONPATH", "")

    def nothing(self) -> Submission:
        return Submission(task_roots(self._podman, self._task, self._image))

    async def control(self) -> str | None:
        """Why the same tests give no reward now on what is known to be sound; None where they do. Raises SandboxError
        where its health check fails as well."""
        try:
            run = await self.tests(await self.gold() if self._task.solution else self.nothing())
        except VerifierError as error:
            return error.message
        refuse_unhealthy(run.ending, "the tests")
        return run.why if run.reward is None else None

    async def gold_seen(self) -> Seen | None:
        """What the tests show when they pay for the task's own solution; None where there is none, or they do not."""
        if not self._task.solution:
            return None
        try:
            run = await self.tests(await self.gold())
        except VerifierError:
            return None
        return run.seen if run.reward is not None and run.reward >= 1.0 else None

    def _spec(self, user: str, kind: str, capabilities: Sequence[str] = ()) -> BoxSpec:
        environment = self._task.environment
        return BoxSpec(
            self._image,
            self._limits,
            env=environment.env,
            user=user,
            workdir=environment.workdir,
            workspace=environment.workspace,
            run_id=self._run_id,
            trial=self._trial,
            labels={"lego.kind": kind},
            capabilities=capabilities,
            health=environment.health,
        )


def _judge(run: _Run, controlled: bool, control: str | None) -> Verdict:
    """`control`: why the control gave no reward either, where one was run."""
    detail = dict(run.detail)
    if run.reward is not None:
        outcome: Outcome = "passed" if run.reward >= 1.0 else "failed"
        return Verdict(outcome, run.reward, detail)
    detail["reason"] = run.why
    if not controlled:
        return Verdict("error", None, {**detail, "fault": "infra"})
    if control is not None:
        return Verdict("error", None, {**detail, "control": control, "fault": "task"})
    return Verdict("broken", 0.0, {**detail, "control": "gave a reward"})


def hidden_tests(task: Task) -> dict[str, File]:
    """A task's tests by the absolute paths that they have at verification."""
    return _under("/tests", task.tests, "test.sh")


def _spoken_of(path: str, tests: Tree) -> bool:
    """Whether some file of the tests names a file."""
    return any(path.rpartition("/")[2].encode() in file.data for file in tests.values())


def _under(folder: str, tree: Tree, script: str) -> dict[str, File]:
    """A tree's files below an absolute folder, the script executable."""
    return {
        f"{folder}/{path}": replace(file, mode=file.mode | 0o555) if path == script else file
        for path, file in tree.items()
    }
