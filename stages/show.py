"""`lego show TRIAL`: the turns, the tool calls, the submission, the verdict and why."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click

from lego.errors import StoreError
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.rundb.store import Row, Store


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@click.command()
@click.argument("trial")
@click.option("--log", "with_log", is_flag=True, help="Print the test log and the harness's output whole.")
@click.option("--full", is_flag=True, help="Print messages whole instead of their first lines.")
@config_options
def command(loaded: Loaded, as_json: bool, trial: str, with_log: bool, full: bool) -> None:
    """Show one trial: what the policy did, turn by turn, what it left, and why its reward is what it is.

    TRIAL is a number, or `last` for the latest one that was verified.
    """
    from lego.rundb.paths import run_db
    from lego.rundb.store import Store

    store = Store.open_read_only(run_db(loaded.config.run.dir, loaded.config.run.name))
    report = gather(store, _number(store, trial))
    if as_json:
        print_json({key: value for key, value in report.items() if key not in ("output", "log")})
        return
    click.echo("\n".join(lines(report, full)))
    if with_log:
        for title in ("output", "log"):
            click.echo(f"\n── {'harness output' if title == 'output' else 'test log'} ──\n{report[title]}")


def _number(store: Store, trial: str) -> int:
    if trial == "last":
        latest = store.value("SELECT trial_id FROM verdicts ORDER BY id DESC LIMIT 1")
        if latest is None:
            raise StoreError(
                "no trial was verified yet", fault="user", hint="lego verify; or name a trial by its number"
            )
        return int(latest)
    if not trial.isdigit():
        raise click.BadParameter(f"{trial!r} is neither a number nor `last`", param_hint="TRIAL")
    return int(trial)


def gather(store: Store, trial_id: int) -> dict[str, Any]:
    """Everything about one trial, as plain data. Raises StoreError if there is no such trial."""
    from lego.rundb import calls, rounds, training, trials, verdicts
    from lego.rundb.blobs import unpack_bytes

    row = trials.trial(store, trial_id)
    if row is None:
        last = store.value("SELECT max(id) FROM trials")
        raise StoreError(
            f"there is no trial {trial_id}",
            fault="user",
            hint=f"trials go from 1 to {last}" if last else "no trial was run yet",
        )
    verdict = verdicts.latest(store, trial_id)
    round_ = rounds.get(store, row["round_id"])
    return {
        "trial": trial_id,
        "task": row["task_id"],
        "harness": row["harness"],
        "sample": row["sample"],
        "attempt": row["attempt"],
        "round": f"{round_.kind} {round_.ordinal}",
        "policy": round_.policy_version,
        **{key: row[key] for key in ("status", "fault", "ending", "reason", "exit_code", "seconds", "waited")},
        "summary": json.loads(row["summary"]),
        "submission": json.loads(row["submission_note"]),
        "turns": [_turn(call) for call in calls.of_trial(store, trial_id)],
        "verdict": None if verdict is None else _verdict(verdict),
        "samples": [
            {key: sample[key] for key in ("step", "segment", "advantage", "weight", "tokens", "dropped")}
            for sample in training.samples_of_trial(store, trial_id)
        ],
        "output": unpack_bytes(row["output"]).decode(errors="replace") if row["output"] else "",
        "log": unpack_bytes(verdict["log"]).decode(errors="replace") if verdict and verdict["log"] else "",
    }


def _turn(call: Row) -> dict[str, Any]:
    logprobs = call["logprobs"]
    return {
        "seq": call["seq"],
        "parent": call["parent_seq"],
        "kind": call["kind"],
        "fate": call["fate"],
        "finish": call["finish"],
        "status": call["status"],
        "reason": call["reason"],
        "prompt_tokens": call["prompt_tokens"],
        "sampled_tokens": call["completion_tokens"],
        "mean_logprob": None if logprobs is None or not len(logprobs) else float(logprobs.mean()),
        "new_messages": call["messages"].get("new", []),
        "reply": call["reply"],
        "drift": call["drift"],
    }


def _verdict(verdict: Row) -> dict[str, Any]:
    return {
        **{key: verdict[key] for key in ("reward", "outcome", "trust", "seconds")},
        "detail": json.loads(verdict["detail"]),
        "tamper": json.loads(verdict["tamper"]),
    }


def lines(report: dict[str, Any], full: bool) -> list[str]:
    title = (
        f"trial {report['trial']}",
        report["task"],
        report["harness"],
        f"sample {report['sample']}",
        report["round"],
        f"policy {report['policy']}",
        _reward(report),
    )
    out = [" · ".join(title)]
    if report["status"] != "finished":
        out.append(f" {report['status']}" + (f" ({report['fault']}): {report['reason']}" if report["fault"] else ""))
    for turn in report["turns"]:
        out += turn_lines(turn, full)
    if report["ending"] and report["status"] == "finished":
        code = "" if report["exit_code"] is None else f", exit code {report['exit_code']}"
        waited = f"{report['waited']:.1f} s of it waiting for the engine"
        out.append(f" ended       {report['ending']}{code} after {report['seconds']:.1f} s ({waited})")
    note = report["submission"]
    if note:
        changed, dropped = note.get("changed", []), note.get("dropped", [])
        kept = ", ".join(str(path) for path in changed[:6])
        out.append(
            f" submission  {len(changed)} file{'s' if len(changed) != 1 else ''} kept ({kept})"
            if changed
            else " submission  nothing changed"
        )
        out += [f"             dropped {path}: {why}" for path, why in dropped[:8]]
    verdict = report["verdict"]
    if verdict:
        out.append(f" verdict     {verdict['outcome']}: {_why(verdict)}")
        out += [
            f"             ⚠ {finding['kind']}: {finding['path']} {finding['detail']}".rstrip()
            for finding in verdict["tamper"]
        ]
        if verdict["trust"]:
            out.append(f" trust       {verdict['trust']}")
    for sample in report["samples"]:
        state = (
            f"dropped: {sample['dropped']}"
            if sample["dropped"]
            else f"{sample['tokens']} tokens, advantage {sample['advantage']:+.3f}, weight {sample['weight']:.2f}"
        )
        out.append(f" step {sample['step']:<6} segment {sample['segment']}: {state}")
    return out


def _reward(report: dict[str, Any]) -> str:
    verdict = report["verdict"]
    if verdict is None:
        return "not verified"
    return "reward –" if verdict["reward"] is None else f"reward {verdict['reward']:g}"


def _why(verdict: dict[str, Any]) -> str:
    detail = verdict["detail"]
    return str(detail.get("reason") or "; ".join(f"{key} {value}" for key, value in detail.items()) or "–")


def turn_lines(turn: dict[str, Any], full: bool) -> list[str]:
    out: list[str] = []
    for message in turn["new_messages"]:
        if message["role"] != "assistant":
            out += _block(f"    {message['role']:<9}", message["content"], full)
    if turn["kind"] == "rejected":
        return [*out, f" {turn['seq']:>2} refused   {turn['status']} {turn['reason']}"]
    reply = turn["reply"] or {}
    marks = [mark for mark in (turn["kind"], turn["fate"], turn["finish"]) if mark not in ("main", "delivered", "stop")]
    tail = f"{turn['sampled_tokens']} tok" + (f"   ⚠ {', '.join(marks)}" if marks else "")
    said: list[tuple[str, str]] = []
    if reply.get("reasoning"):
        said.append(("thinking", reply["reasoning"]))
    if reply.get("content"):
        said.append(("says", reply["content"]))
    said += [(call["name"], _arguments(call["arguments"])) for call in reply.get("tool_calls", [])]
    said = said or [("says", "(nothing)")]
    for number, (name, text) in enumerate(said):
        block = _block(f" {turn['seq'] if not number else '':>2} {name:<9}", text, full)
        if not number:
            block[0] = f"{block[0]:<64} {tail}"
        out += block
    return out


def _arguments(text: str) -> str:
    """A call with one text argument reads best as that text."""
    try:
        values = json.loads(text)
    except ValueError:
        return text
    if isinstance(values, dict) and len(values) == 1 and isinstance(next(iter(values.values())), str):
        return str(next(iter(values.values())))
    return "" if values == {} else text


def _block(label: str, text: str, full: bool) -> list[str]:
    # What a model or a tool wrote must not steer the terminal it is shown on.
    rows = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text).rstrip("\n").split("\n")
    shown = rows if full else [row[:100] for row in rows[:4]]
    more = [] if full or len(rows) <= 4 else [f"… {len(rows) - 4} more lines"]
    margin = " " * len(label)
    return [f"{label} {shown[0]}", *(f"{margin} {row}" for row in [*shown[1:], *more])]
