from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lego.errors import VerifierError
from lego.sandbox.container import Box
from lego.sandbox.ending import Ending, Reason
from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Submission
from lego.tasks.task import File, Healthcheck
from lego.verifier.grade import Candidate, Nothing, Oracle, verify
from lego.verifier.graders import HarborGrader
from lego.verifier.reaches import reaches
from lego.verifier.verdict import Verdict
from lego.verifier.witness import Witness
from tests.sandbox.running import SMALL
from tests.verifier.shell_tasks import GOOD_TEST, shell_task, with_health, written

pytestmark = pytest.mark.podman

FIXED = written(code_txt=b"fixed by hand\n")


def _said(verdict: Verdict) -> tuple[str, float | None]:
    return verdict.outcome, verdict.reward


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (Oracle(), ("passed", 1.0)),
        (Nothing(), ("failed", 0.0)),
        (FIXED, ("passed", 1.0)),
        (written(code_txt=b"still broken"), ("failed", 0.0)),
    ],
)
async def test_solved_is_told_from_unsolved(
    podman: Podman, busybox: str, candidate: Candidate, said: tuple[str, float]
) -> None:
    verdict = await verify(podman, shell_task(), busybox, candidate, SMALL)
    assert _said(verdict) == said and verdict.trust and not verdict.tamper


async def test_exit_code_and_output_prove_nothing(podman: Podman, busybox: str) -> None:
    task = shell_task("echo 1 passed; echo 'reward: 1'; echo 0.25 > /logs/verifier/reward.txt; exit 0")
    verdict = await verify(podman, task, busybox, Nothing(), SMALL)
    assert _said(verdict) == ("failed", 0.25) and b"1 passed" in verdict.log
    task = shell_task(f"{GOOD_TEST}; exit 1")
    assert _said(await verify(podman, task, busybox, FIXED, SMALL)) == ("passed", 1.0)


async def test_json_rewards_come_with_their_parts(podman: Podman, busybox: str) -> None:
    task = shell_task("""
    echo '{"reward": 0.75, "speed": 2}' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt""")
    verdict = await verify(podman, task, busybox, Nothing(), SMALL)
    assert verdict.reward == 0.75 and verdict.detail["parts"] == {"reward": 0.75, "speed": 2.0}


CRASHES = f"[ -f /app/crash ] && exit 1; {GOOD_TEST}"


@pytest.mark.parametrize(
    "test",
    [
        CRASHES,
        f"[ -f /app/crash ] && echo nan > /logs/verifier/reward.txt && exit 0; {GOOD_TEST}",
        f"[ -f /app/crash ] && kill -9 $$; {GOOD_TEST}",
    ],
)
async def test_no_reward_is_the_submissions_doing_when_the_solution_gets_one(
    podman: Podman, busybox: str, test: str
) -> None:
    verdict = await verify(podman, shell_task(test), busybox, written(crash=b""), SMALL)
    assert _said(verdict) == ("broken", 0.0) and verdict.detail["control"] == "gave a reward"


async def test_what_the_tests_end_with_is_read_whatever_is_in_its_place(podman: Podman, busybox: str) -> None:
    """Code under test exchanges files of the tests for links that lead nowhere a host could follow."""
    deep = "p=d; for i in 1 2 3 4 5 6; do p=$p/$p; done; mkdir -p /tests/$p"
    spoil = f"cd /tests; rm kept gone; ln -s $(printf '%0300d' 0) kept; {deep}; ln -s $p gone; rm -rf /tests/d/d/d/d"
    task = shell_task(f"{GOOD_TEST}; {spoil}")
    task = replace(task, tests={**task.tests, "kept": File(b"k"), "gone": File(b"g")})
    verdict = await verify(podman, task, busybox, written(code_txt=b"still broken"), SMALL)
    assert _said(verdict) == ("failed", 0.0)
    assert verdict.detail["seen"]["rewritten"] == ("/tests/gone", "/tests/kept")


@pytest.mark.parametrize("way", [Entry("/app/sub", "link", data=b"sub"), Entry("/app/sub", "file", data=b"mine")])
async def test_tests_that_cannot_be_laid_over_a_submission_are_its_own_doing(
    podman: Podman, busybox: str, way: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HarborGrader, "files", lambda self: {"/app/sub/hidden.txt": File(b"")})
    task = shell_task(f"test -e /app/sub/hidden.txt || exit 1; {GOOD_TEST}")
    verdict = await verify(podman, task, busybox, Submission(("/app",), (way,)), SMALL)
    assert _said(verdict) == ("broken", 0.0) and "cannot be laid over what was handed in" in verdict.detail["reason"]


async def test_a_hang_is_broken_whatever_it_wrote_before(podman: Podman, busybox: str) -> None:
    task = shell_task(f"{GOOD_TEST}; [ -f /app/hang ] && echo 1 > /logs/verifier/reward.txt && sleep 1000; true")
    verdict = await verify(podman, task, busybox, written(hang=b""), SMALL, 4.0)
    assert _said(verdict) == ("broken", 0.0) and "timeout" in verdict.detail["reason"]


@pytest.mark.parametrize(
    ("test", "solve"),
    [("exit 1", "true"), ("exit 1", None), (GOOD_TEST + "; exec sleep 1000", "true"), (CRASHES, "sleep 1000")],
)
async def test_no_reward_is_an_error_when_the_control_gets_none_either(
    podman: Podman, busybox: str, test: str, solve: str | None
) -> None:
    verdict = await verify(podman, shell_task(test, solve), busybox, written(crash=b""), SMALL, 4.0)
    assert _said(verdict) == ("error", None) and verdict.detail["fault"] == "task" and verdict.detail["control"]


async def test_podman_failing_is_never_a_reward(podman: Podman) -> None:
    verdict = await verify(podman, shell_task(), "localhost/lego-test/none:1", FIXED, SMALL)
    assert _said(verdict) == ("error", None) and verdict.detail["fault"] == "infra"
    assert "not in the store" in verdict.detail["reason"]


async def test_what_the_candidate_may_make_long_is_read_beside_the_loop(
    podman: Podman, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {}

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            where[name] = threading.current_thread()
            return real(*args)

        return call

    monkeypatch.setattr(Witness, "read", noted("report", Witness.read))
    monkeypatch.setattr("lego.verifier.grade.reaches", noted("code", reaches))
    await verify(podman, shell_task(), busybox, written(code_txt=b"still broken"), SMALL)
    assert where.keys() == {"report", "code"} and threading.main_thread() not in where.values()


@pytest.mark.parametrize("reason", ["lost", "unhealthy"])
@pytest.mark.parametrize("candidate", [FIXED, written(crash=b"")])
async def test_infrastructure_that_fails_the_solution_says_nothing_of_the_task_or_of_the_candidate(
    podman: Podman, busybox: str, candidate: Submission, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The solution is run to compare with: with what is paid, and with what gets no reward."""
    real, solved = Box.run, list[str]()

    async def run(box: Box, argv: Sequence[str], **how: Any) -> Ending:
        ending, solves = await real(box, argv, **how), argv == ["/solution/solve.sh"]
        solved.extend(argv if solves else [])
        if solved and solves is (reason == "lost"):
            ending = replace(ending, rc=None, reason=reason, evidence={"failed": "the health check"})
        return ending

    monkeypatch.setattr(Box, "run", run)
    verdict = await verify(podman, shell_task(CRASHES), busybox, candidate, SMALL)
    assert solved and _said(verdict) == ("error", None) and verdict.detail["fault"] == "infra"


@pytest.mark.parametrize("candidate", [Oracle(), FIXED])
async def test_an_agents_user_that_the_image_does_not_know_is_the_tasks_fault(
    podman: Podman, busybox: str, candidate: Candidate
) -> None:
    verdict = await verify(podman, shell_task(agent_user="nobody-here"), busybox, candidate, SMALL)
    assert _said(verdict) == ("error", None) and verdict.detail["fault"] == "task"
    assert "no user 'nobody-here'" in verdict.detail["reason"]


async def test_a_task_without_its_parts_says_so(podman: Podman, busybox: str) -> None:
    with pytest.raises(VerifierError, match="no solution/solve.sh"):
        await verify(podman, shell_task(solve=None), busybox, Oracle(), SMALL)
    with pytest.raises(VerifierError, match="did not end by itself: timeout"):
        await verify(podman, shell_task(solve="sleep 1000"), busybox, Oracle(), SMALL, 2.0)


async def test_the_oracle_runs_in_its_own_environment_and_may_touch_protected_paths(
    podman: Podman, busybox: str
) -> None:
    test = """
    cd /app
    [ "$(cat code.txt w pytest.ini | tr '\\n' .)" = fixed.hm.x. ] && echo 1 > /logs/verifier/reward.txt && exit
    echo 0 > /logs/verifier/reward.txt"""
    task = shell_task(
        test, solve="echo fixed > code.txt; echo x > pytest.ini; echo $WORD > w", solution_env={"WORD": "hm"}
    )
    assert _said(await verify(podman, task, busybox, Oracle(), SMALL)) == ("passed", 1.0)


async def test_tests_may_run_the_code_as_another_user(podman: Podman, busybox: str) -> None:
    test = """
    chmod 755 /logs/verifier; su -s /bin/sh agent -c 'id -u; echo 1 > /logs/verifier/reward.txt'
    echo 0.5 > /logs/verifier/reward.txt"""
    verdict = await verify(podman, shell_task(test), busybox, Nothing(), SMALL)
    assert verdict.reward == 0.5 and verdict.log.startswith(b"1000\n") and b"Permission denied" in verdict.log


async def test_the_tests_environment_and_no_network(podman: Podman, busybox: str) -> None:
    test = "env; ls /sys/class/net; echo 1 > /logs/verifier/reward.txt"
    verdict = await verify(podman, shell_task(test, verifier_env={"A": "b c"}), busybox, Nothing(), SMALL)
    words = verdict.log.decode().splitlines()
    assert "A=b c" in words and any(word.startswith("PYTHONPYCACHEPREFIX=/") for word in words) and words[-1] == "lo"


async def test_a_service_that_only_the_submission_keeps_from_answering_is_its_own_doing(
    podman: Podman, busybox: str
) -> None:
    health = Healthcheck("echo said; ! grep -q broken-service code.txt", interval=0.0, retries=1)
    task = with_health(shell_task(), health)
    assert _said(await verify(podman, task, busybox, FIXED, SMALL)) == ("passed", 1.0)
    verdict = await verify(podman, task, busybox, written(code_txt=b"broken-service"), SMALL)
    assert _said(verdict) == ("broken", 0.0) and "health check failed" in verdict.detail["reason"]


@pytest.mark.parametrize("solve", ["echo fixed > code.txt", None])
async def test_a_service_that_never_answers_is_infrastructure(podman: Podman, busybox: str, solve: str | None) -> None:
    task = with_health(shell_task(solve=solve), Healthcheck("echo refused; false", interval=0.0, retries=1))
    verdict = await verify(podman, task, busybox, FIXED, SMALL)
    assert _said(verdict) == ("error", None) and verdict.detail["fault"] == "infra"
    assert "health check" in verdict.detail["reason"] and "refused" in verdict.detail["reason"]


async def test_the_environments_own_service_is_nothing_the_tests_left(podman: Podman, busybox: str) -> None:
    health = Healthcheck("sleep 1000 > /dev/null 2>&1 & true")
    verdict = await verify(podman, with_health(shell_task(), health), busybox, FIXED, SMALL)
    assert _said(verdict) == ("passed", 1.0) and verdict.detail["seen"]["left"] == ()
