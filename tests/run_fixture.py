"""A run as a loop would have left it, made through lego.rundb alone: for tests of what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lego.evaluation import solve_rate
from lego.rundb import calls, catalogue, meta, rounds, training, trials, verdicts
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store
from lego.rundb.training import SampleRow
from lego.sandbox.rootfs import Entry
from lego.sandbox.submission import Dropped, Submission

HOSTILE = "\x1b[31mred\x1b[0m [b]bold[/b] <script>alert(1)</script> \x07\u202eevil"
"""What a model may write: an escape sequence, markup of two kinds, a bell, a bidirectional override."""

SETTINGS: dict[str, Any] = {"sampler": "policy", "samples": 4, "temperature": 1.0, "history": "raw"}


def call(seq: int, reply: dict[str, Any], new: Sequence[dict[str, Any]], sampled: int = 12) -> dict[str, Any]:
    return {
        "seq": seq, "parent_seq": seq - 1 or None, "shared": 0, "kind": "main", "sampler": "policy",
        "policy_version": 0, "dialect": "openai-chat", "added_prompt_ids": [1, 2, 3],
        "completion_ids": list(range(sampled)), "logprobs": [-0.25] * sampled, "prompt_tokens": 40 * seq,
        "finish": "stop", "fate": "delivered", "status": 200, "reason": "", "messages": {"kept": 0, "new": list(new)},
        "reply": reply, "tools_digest": "", "tools": "", "wishes": {}, "drift": {}, "started_at": 1000.0 + seq,
        "first_token_at": 1000.1 + seq, "ended_at": 1000.5 + seq,
    }  # fmt: skip


def bash(command: str, thinking: str | None = None) -> dict[str, Any]:
    import json

    reply = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "name": "bash", "arguments": json.dumps({"command": command})}],
    }
    return reply | ({"reasoning": thinking} if thinking else {})


def patch(text: bytes = b"def ok(n):\n    return n <= 3\n") -> Submission:
    return Submission(
        ("/app",),
        (
            Entry("/app/window.py", "file", data=text, existed=True),
            Entry("/app/old.py", "deleted", existed=True),
            Entry("/app/blob.bin", "file", data=b"\x00\x01\xff"),
        ),
        (Dropped("/app/tests/test_window.py", "protected", "modified"),),
    )


def finish(store: Store, trial: trials.Trial, *, submission: Submission | None = None, ending: str = "exit") -> None:
    left = submission or Submission(("/app",))
    trials.finish(
        store, trial, ending=ending, reason="", exit_code=0, seconds=2.5, waited=1.25,
        summary={"calls": 3, "sampled_tokens": 36}, output=f"harness says {HOSTILE}\n".encode(),
        submission=left.to_bytes(), submission_digest=left.digest,
        submission_note={
            "changed": sorted(left.paths()),
            "dropped": [[drop.path, f"{drop.reason}, {drop.how}"] for drop in left.dropped],
        },
    )  # fmt: skip


def verdict(store: Store, trial_id: int, reward: float | None, *, tampered: bool = False) -> None:
    verdicts.record(
        store, trial_id, reward=reward, outcome="passed" if reward == 1.0 else "failed",
        detail={"reason": "12 of 12 named tests passed" if reward == 1.0 else "2 of 12 named tests failed"},
        tamper=[{"kind": "protected path", "path": "tests/test_window.py", "detail": "edited"}] if tampered else [],
        trust="named tests, parsed on the host", log=b"test log\n", seconds=0.4, leased=False,
    )  # fmt: skip


def begin(folder: Path, tasks: int = 8, held_out: int = 4) -> Store:
    store = Store.open(folder / "demo" / "run.db", lease=1e6)
    meta.settle_config(store, {"run.name": "demo", "policy.model": "tiny", "rollout.note": HOSTILE}, {})
    meta.put(store, "version.lego", "0.1.0")
    meta.event(store, "config", "eval.every: 5 -> 10")
    catalogue.register_tasks(
        store,
        [TaskEntry(f"off-by-one-{n:04d}", "train", f"t{n}", "family", "Fix it.", "") for n in range(tasks)]
        + [TaskEntry(f"held-out-{n:04d}", "eval", f"e{n}", "family", "Fix it.", "") for n in range(held_out)],
    )
    catalogue.add_policy(store, parent=None, path="policies/0", digest="d0", made_by="start")
    return store


def evaluate(store: Store, ordinal: int, policy: int, solved: int, settings: dict[str, Any] | None = None) -> None:
    """A closed evaluation of the held-out tasks, the first `solved` of them solved."""
    names = catalogue.task_ids(store, "eval")
    chosen = {**SETTINGS, "samples": 1, "temperature": 0.0, "history": "template", **(settings or {})}
    round_ = rounds.open_round(
        store, "eval", ordinal=ordinal, policy_version=policy, tasks=[(name, "tiny-agent") for name in names],
        samples=1, settings=chosen,
    )  # fmt: skip
    outcomes: dict[str, list[bool]] = {}
    while (trial := trials.claim(store, round_.id)) is not None:
        finish(store, trial)
        good = names.index(trial.task_id) < solved
        verdict(store, trial.id, float(good))
        outcomes[trial.task_id] = [good]
    rate = solve_rate(outcomes)
    training.record_eval(
        store, round_id=round_.id, policy_version=policy, n=rate.trials, passed=solved, rate=rate.mean, low=rate.low,
        high=rate.high,
        detail={"history": chosen["history"], "temperature": chosen["temperature"], "tasks": rate.tasks,
                "tasks_asked": len(names)},
    )  # fmt: skip
    rounds.close_round(store, round_.id, "evaluated")


def train(store: Store, ordinal: int, policy: int, solved_of_four: int, *, metrics: dict[str, float]) -> None:
    """A closed round of two tasks, four samples each, and the step that came of it."""
    names = catalogue.task_ids(store, "train")[2 * (ordinal - 1) % 8 :][:2]
    round_ = rounds.open_round(
        store, "train", ordinal=ordinal, policy_version=policy, tasks=[(name, "tiny-agent") for name in names],
        samples=4, settings=SETTINGS,
    )  # fmt: skip
    rows = []
    while (trial := trials.claim(store, round_.id)) is not None:
        finish(store, trial)
        verdict(store, trial.id, float(trial.sample < solved_of_four))
        rows.append(SampleRow(trial.id, None, 0, 0.5, 0.25, 36))
    step = training.begin_step(store, round_id=round_.id, kind="rl", policy_from=policy, samples=rows)
    new = catalogue.add_policy(store, parent=policy, path=f"policies/{policy + 1}", digest=f"d{step}", made_by="train")
    training.end_step(store, step, status="done", reason="", policy_to=new.version, metrics=metrics)
    rounds.close_round(store, round_.id, "done")


def a_run(folder: Path) -> Store:
    """Three closed training rounds, two evaluations, and a fourth round half done.

    In the open round (two tasks, four samples): trial 33 tampered, 34 unsolved with hostile text, 35 solved with a
    patch, 36 lost to infrastructure, 37 finished and not verified, 38 running, the rest pending.
    """
    store = begin(folder)
    evaluate(store, 1, 0, 1)
    for ordinal, solved in ((1, 1), (2, 2), (3, 2)):
        train(
            store, ordinal, ordinal - 1, solved,
            metrics={"proof/correlation": 0.9999, "proof/mean_gap": 3e-6 * ordinal, "step/grad_norm": 0.4 / ordinal,
                     "step/loss": float("nan") if ordinal == 2 else 0.1, "step/dropped": 0.0, "step/tokens": 288.0},
        )  # fmt: skip
    evaluate(store, 2, 3, 3)
    names = catalogue.task_ids(store, "train")[6:8]
    round_ = rounds.open_round(
        store, "train", ordinal=4, policy_version=3, tasks=[(name, "tiny-agent") for name in names], samples=4,
        settings=SETTINGS,
    )  # fmt: skip
    claimed = [trials.claim(store, round_.id) for _ in range(6)]
    tampered, hostile, solved_one, lost, unverified, running = claimed
    assert tampered and hostile and solved_one and lost and unverified and running
    finish(store, tampered, submission=patch())
    verdict(store, tampered.id, 1.0, tampered=True)
    for seq, (reply, new) in enumerate(
        [
            (bash("cat window.py", "First, look at the file."), [{"role": "user", "content": "Fix window.py."}]),
            (bash(f"echo '{HOSTILE}'"), [{"role": "tool", "content": "def ok(n):\n    return n < 3\n" * 20}]),
            ({"role": "assistant", "content": f"Done {HOSTILE}"}, [{"role": "tool", "content": HOSTILE}]),
        ],
        1,
    ):
        calls.record(store, hostile.id, call(seq, reply, new))
        calls.record(store, running.id, call(seq, reply, new))
    finish(store, hostile, submission=patch(b"def ok(n):\n    return n < 4\n"), ending="turns")
    verdict(store, hostile.id, 0.0)
    finish(store, solved_one, submission=patch())
    verdict(store, solved_one.id, 1.0)
    trials.fail(store, lost, "infra", f"podman died {HOSTILE}", 3)
    finish(store, unverified)
    return store
