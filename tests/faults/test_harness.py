"""Harnesses that do not do their part: infrastructure where no call was made, the policy's own doing where one was."""

import pytest

pytestmark = pytest.mark.podman

ASKS = """python3 - <<'END'
import os, socket
body = b'{"model": "policy", "messages": [{"role": "user", "content": "hello"}]}'
s = socket.socket(socket.AF_UNIX)
s.connect("/run/lego/proxy.sock")
s.sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nAuthorization: Bearer "
          + %s + b"\\r\\nContent-Type: application/json\\r\\nContent-Length: %%d\\r\\n\\r\\n" %% len(body) + body)
print(s.makefile().read().split("\\r\\n")[0])
END
"""


@pytest.mark.parametrize(
    "script, deadline, cause",
    [
        (
            "echo cannot import litellm >&2; exit 3",
            "60s",
            "ended with exit code 3; its last words: cannot import litellm",
        ),
        (
            "exec /opt/no-such-agent",
            "60s",
            "ended with exit code 127; its last words: /bin/sh: 1: exec: /opt/no-such-agent",
        ),
        ("exit 0", "60s", "ended with exit code 0, having done nothing"),
        ("exec sleep 1000", "2s", "hung until it was killed at the deadline"),
        (
            ASKS % 'b"stale-key"' + "exit 1",
            "60s",
            "sent a wrong API key (refused: 1), where its spec should pass {token} on",
        ),
    ],
    ids=["crashes", "is not there", "does nothing", "hangs", "wrong token"],
)
def test_a_harness_that_makes_no_call_is_infrastructure_retried_and_capped(project, podman, script, deadline, cause):
    project.task("good")
    project.write(
        harness={project.spec("mine", script): 1.0},
        sandbox={"timeout": deadline},
        rollout={"samples_per_task": 2, "max_attempts": 2, "concurrency": 2},
    )
    result = project.lego("rollout")
    assert result.code == 3 and "no call reached the model: the harness " + cause in result.error
    assert "lego check --harness NAME" in result.error
    trials = project.trials()
    assert sorted((t["sample"], t["attempt"]) for t in trials) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert all((t["status"], t["fault"]) == ("failed", "infra") and cause in t["reason"] for t in trials)
    assert project.rows("SELECT * FROM verdicts") == []


def test_a_run_of_silent_harnesses_stops_early(project, podman):
    for name in ("one", "two", "three"):
        project.task(name)
    project.write(harness={project.spec("idle", "exit 0"): 1.0}, rollout={"samples_per_task": 4})
    result = project.lego("rollout")
    assert result.code == 3 and "trials in a row failed on infrastructure" in result.error
    assert "having done nothing" in result.error
    states = [t["status"] for t in project.trials()]
    assert states.count("failed") < 10 and states.count("pending") >= 6
    assert project.lego("verify").code == 0  # there is nothing to wait for
    status = project.lego("status", env={"COLUMNS": "80"})
    assert "infra" in status.out and "having done nothing" in " ".join(status.out.split())
    assert max(map(len, status.out.splitlines())) <= 80


def test_a_prompt_beyond_the_context_ends_a_trial_as_truncated_not_as_an_error(project, podman):
    """OpenHands#7023, claude-code-proxy#60: what the policy left when its context was full is graded like any other."""
    project.task("good")
    asks = ASKS.replace('"hello"}]}\'', '"\' + b"word " * 900 + b\'"}]}\'') % 'os.environ["LEGO_TOKEN"].encode()'
    project.write(
        policy={"context": 512},
        harness={project.spec("long", asks + "echo right > answer; exit 1"): 1},
        rollout={"max_output_tokens": 64},
        tasks={"eval": [{"source": "harbor", "path": "tasks"}]},
    )
    result = project.lego("eval")
    assert result.code == 0, result.err
    (trial,) = project.trials()
    assert (trial["status"], trial["fault"], trial["ending"], trial["reward"]) == ("finished", None, "context", 1)
    assert trial["summary"]["rejected"] == {"context_overflow": 1}


def test_a_harness_that_stops_at_its_own_limit_is_out_of_turns(project, podman):
    project.task("good")
    asks = ASKS % 'os.environ["LEGO_TOKEN"].encode()'
    short = project.spec("short", asks + "echo right > answer; exit 3", done={"ok": [0, 3], "turns": [3]})
    project.write(harness={short: 1}, tasks={"eval": [{"source": "harbor", "path": "tasks"}]})
    assert project.lego("eval").code == 0
    (trial,) = project.trials()
    assert (trial["status"], trial["fault"], trial["ending"], trial["reward"]) == ("finished", None, "turns", 1)


def test_a_harness_that_hangs_after_a_call_is_graded_on_what_it_left(project, podman):
    project.task("good")
    project.write(
        harness={
            project.spec("slow", ASKS % 'os.environ["LEGO_TOKEN"].encode()' + "echo right > answer; sleep 1000"): 1
        },
        sandbox={"timeout": "5s"},
        tasks={"eval": [{"source": "harbor", "path": "tasks"}]},
    )
    result = project.lego("eval")
    assert result.code == 0, result.err
    (trial,) = project.trials()
    assert (trial["status"], trial["fault"], trial["ending"]) == ("finished", None, "timeout")
    assert trial["summary"]["calls"] == 1 and trial["reward"] == 1
