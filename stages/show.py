"""`lego show TRIAL`: the turns, the tool calls, the submission, the verdict and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lego.errors import StoreError
from lego.plain import neutral
from lego.rundb.trial_view import drift_words, gather, readable_arguments, why
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.rundb.store import Store


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
            click.echo(f"\n── {'harness output' if title == 'output' else 'test log'} ──\n{neutral(report[title])}")


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
        out += [f"             dropped {path}: {why}" for path, why in dropped[:8]]
    verdict = report["verdict"]
    if verdict:
        out.append(f" verdict     {verdict['outcome']}: {why(verdict)}")
        out += [
            f"             ⚠ {finding['kind']}: {finding['path']} {finding['detail']}".rstrip()
            for finding in verdict["tamper"]
        ]
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
