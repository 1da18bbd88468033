"""`lego show TRIAL`: the turns, the tool calls, the submission, the verdict and why. `lego show TASK`: its trials."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from lego.errors import StoreError
from lego.plain import neutral
from lego.rundb.trial_view import all_verdicts, drift_words, gather, readable_arguments, task_history, why
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.rundb.store import Store


@click.command()
@click.argument("trial", metavar="TRIAL|TASK")
@click.option("--log", "with_log", is_flag=True, help="Print the test log and the harness's output whole.")
@click.option("--patch", "patch_only", is_flag=True, help="Print what the trial changed as a patch, and nothing else.")
@click.option(
    "--verdict", "verdicts_only", is_flag=True, help="Print every verdict on the trial whole, with its evidence."
)
@click.option("--full", is_flag=True, help="Print messages whole instead of their first lines.")
@config_options
def command(
    loaded: Loaded, as_json: bool, trial: str, with_log: bool, patch_only: bool, verdicts_only: bool, full: bool
) -> None:
    """Show one trial: what the policy did, turn by turn, what it left, and why its reward is what it is.

    TRIAL is a number, or `last` for the latest one that was verified. A TASK's id shows its trials, round by round.
    """
    from lego.rundb import catalogue
    from lego.rundb.paths import run_db
    from lego.rundb.store import Store

    if patch_only and (verdicts_only or with_log or full or as_json):
        raise click.UsageError("--patch prints a patch and nothing else")
    store = Store.open_read_only(run_db(loaded.config.run.dir, loaded.config.run.name))
    if not trial.isdigit() and trial != "last" and catalogue.is_task(store, trial):
        _show_task(store, trial, as_json)
        return
    number = _number(store, trial)
    report = gather(store, number)
    if patch_only:
        _show_patch(store, number)
    elif verdicts_only:
        _show_verdicts(store, number, as_json)
    elif as_json:
        print_json({key: value for key, value in report.items() if key not in ("output", "log")})
    else:
        click.echo("\n".join(lines(report, full)))
    if with_log and not as_json:
        for title in ("output", "log"):
            click.echo(f"\n── {'harness output' if title == 'output' else 'test log'} ──\n{neutral(report[title])}")


def _show_patch(store: Store, number: int) -> None:
    """The submission as `git apply` takes it; to a terminal, as text that cannot steer it."""
    from lego.sandbox.patch import patch
    from lego.sandbox.submission import Submission

    stored = store.value("SELECT submission FROM trials WHERE id = ?", (number,))
    if stored is None:
        raise StoreError(f"trial {number} left no submission", fault="user", hint=f"lego show {number} says why")
    text = patch(Submission.from_bytes(stored))
    if sys.stdout.isatty():
        click.echo(neutral(text.decode(errors="replace")), nl=False)
    else:
        sys.stdout.buffer.write(text)


def _show_verdicts(store: Store, number: int, as_json: bool) -> None:
    found = all_verdicts(store, number)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo(f"trial {number} was not verified yet")
    for verdict in found:
        reward = "–" if verdict["reward"] is None else f"{verdict['reward']:g}"
        click.echo(neutral(f"verdict {verdict['id']} · {verdict['at']} · {verdict['outcome']} · reward {reward}"))
        click.echo(neutral(f" why         {why(verdict)}"))
        for finding in verdict["tamper"]:
            click.echo(neutral(f" ⚠ {_finding(finding)}"))
        for finding in verdict["detail"].get("noted", ()):
            click.echo(neutral(f" noted       {_finding(finding)}"))
        click.echo(neutral(f" trust       {verdict['trust']}"))
        for key, value in verdict["detail"].items():
            if key not in ("noted", "reason"):
                click.echo(neutral(f" {key:<11} {_plainly(value)}"))


def _plainly(value: Any) -> str:
    """A part of a verdict's detail on one line; what is nothing in it is left out."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plainly(each)}" for key, each in value.items() if each or each == 0) or "nothing"
    if isinstance(value, list):
        return " ".join(map(_plainly, value))
    return str(value)


def _finding(finding: dict[str, str]) -> str:
    place = " ".join(part for part in (finding["path"], finding["detail"]) if part)
    return f"{finding['kind']}: {place}" if place else finding["kind"]


def _show_task(store: Store, task: str, as_json: bool) -> None:
    """A task's trials through the rounds: is it learnt, is it hacked, is it broken?"""
    history = task_history(store, task)
    if as_json:
        print_json(history)
        return
    click.echo(neutral(f"task {task} · {len(history)} rounds"))
    for row in history:
        rate = "–" if not row["verified"] else f"{row['solved'] / row['verified']:.2f}"
        head = f" {row['kind']} {row['ordinal']:<4} policy {row['policy']:<4} {row['harness']:<14}"
        body = f"solved {row['solved']} of {row['verified']} ({rate})"
        more = [f"{key} {row[key]}" for key in ("tampered", "broken", "errors", "infra") if row[key]]
        trials = " ".join(map(str, row["trials"][:12])) + (" …" if len(row["trials"]) > 12 else "")
        click.echo(neutral("   ".join([f"{head} {body}", *more, f"trials {trials}"])))


def _number(store: Store, trial: str) -> int:
    if trial == "last":
        latest = store.value("SELECT trial_id FROM verdicts ORDER BY id DESC LIMIT 1")
        if latest is None:
            raise StoreError(
                "no trial was verified yet", fault="user", hint="lego verify; or name a trial by its number"
            )
        return int(latest)
    if not trial.isdigit():
        raise click.BadParameter(
            f"{trial!r} is neither a trial's number, nor `last`, nor a task of this run", param_hint="TRIAL|TASK"
        )
    return int(trial)


def lines(report: dict[str, Any], full: bool) -> list[str]:
    """The report for a person; nothing that a model or a tool wrote can steer the terminal."""
    return [neutral(row) for row in _lines(report, full)]


def _lines(report: dict[str, Any], full: bool) -> list[str]:
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
        out += _turn_lines(turn, full)
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
        out += [f"             dropped {path}: {reason}" for path, reason in dropped[:8]]
        if len(dropped) > 8:
            out.append(f"             and {len(dropped) - 8} more dropped")
    out += [_step_line(step) for step in report["summary"].get("steps", ())]
    verdict = report["verdict"]
    if verdict:
        out += [_graded_line(step) for step in verdict["detail"].get("steps", ())]
        out.append(f" verdict     {verdict['outcome']}: {why(verdict)}")
        out += [f"             ⚠ {_finding(finding)}" for finding in verdict["tamper"]]
        out += [f"             noted: {_finding(finding)}" for finding in verdict["detail"].get("noted", ())]
        if verdict["trust"]:
            # Named always; what it can and cannot rule out takes a paragraph.
            out.append(f" trust       {verdict['trust'] if full else verdict['trust'].partition(':')[0]}")
    for sample in report["samples"]:
        state = (
            f"dropped: {sample['dropped']}"
            if sample["dropped"]
            else f"{sample['tokens']} tokens, advantage {sample['advantage']:+.3f}, weight {sample['weight']:.2f}"
        )
        out.append(f" step {sample['step']:<6} segment {sample['segment']}: {state}")
    return out


def _step_line(step: dict[str, Any]) -> str:
    least = f"; the next one was not begun: {step['min_reward']}" if "min_reward" in step else ""
    return f" step        {step['step']}: {step['ending']} after {step['seconds']:.1f} s{least}"


def _graded_line(step: dict[str, Any]) -> str:
    reward = "" if step["reward"] is None else f", reward {step['reward']:g}"
    return f" graded      {step['step']}: {step['outcome']}{reward}" + (
        f" ({step['reason']})" if step["reason"] else ""
    )


def _reward(report: dict[str, Any]) -> str:
    verdict = report["verdict"]
    if verdict is None:
        return "not verified"
    return "reward –" if verdict["reward"] is None else f"reward {verdict['reward']:g}"


def turn_lines(turn: dict[str, Any], full: bool) -> list[str]:
    """One turn, as safe to print as `lines`."""
    return [neutral(row) for row in _turn_lines(turn, full)]


def _turn_lines(turn: dict[str, Any], full: bool) -> list[str]:
    out: list[str] = []
    for message in turn["new_messages"]:
        if message["role"] != "assistant":
            out += _block(f"    {message['role']:<9}", message["content"], full)
    if turn["kind"] == "rejected":
        why = f": {turn['drift']['problem']}" if turn["drift"].get("problem") else ""
        return [*out, f" {turn['seq']:>2} refused   {turn['status']} {turn['reason']}{why}"]
    reply = turn["reply"] or {}
    marks = [mark for mark in (turn["kind"], turn["fate"], turn["finish"]) if mark not in ("main", "delivered", "stop")]
    tail = f"{turn['sampled_tokens']} tok" + (f"   ⚠ {', '.join(marks)}" if marks else "")
    said: list[tuple[str, str]] = []
    if reply.get("reasoning"):
        said.append(("thinking", reply["reasoning"]))
    if reply.get("content"):
        said.append(("says", reply["content"]))
    said += [(call["name"], readable_arguments(call["arguments"])) for call in reply.get("tool_calls", [])]
    said = said or [("says", "(nothing)")]
    for number, (name, text) in enumerate(said):
        block = _block(f" {turn['seq'] if not number else '':>2} {name:<9}", text, full)
        if not number:
            block[0] = f"{block[0]:<64} {tail}"
        out += block
    drift = drift_words(turn["drift"])
    return [*out, f"    ↳ {drift}"] if drift else out


def _block(label: str, text: str, full: bool) -> list[str]:
    rows = text.rstrip("\n").split("\n")
    shown = rows if full else [row[:100] for row in rows[:4]]
    more = [] if full or len(rows) <= 4 else [f"… {len(rows) - 4} more lines"]
    margin = " " * len(label)
    return [f"{label} {shown[0]}", *(f"{margin} {row}" for row in [*shown[1:], *more])]
