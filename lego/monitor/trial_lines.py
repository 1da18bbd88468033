"""One trial to read: its turns with thinking, calls and results, what it left, its verdict, its samples. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lego.monitor.lines import Line, Look
from lego.plain import neutral, one_line
from lego.rundb.trial_view import drift_words, readable_arguments, why

_FOLD = 12
"""Rows of one message shown before it is folded."""

_WIDTH = 10


def trial_lines(
    report: dict[str, Any], patch: Sequence[Line], *, thinking: bool = True, full: bool = False, logs: bool = False
) -> list[Line]:
    """report: of `trial_view.gather`. thinking: show it. full: fold nothing. logs: what harness and tests printed."""
    out = _title(report)
    for turn in report["turns"]:
        out += _turn(turn, thinking, full)
    if not report["turns"]:
        out.append(Line("no call was recorded", "soft"))
    out += _ending(report)
    if patch:
        out += [_heading("patch"), *patch]
    out += _verdict(report)
    out += _samples(report["samples"])
    if logs:
        for name, text in (("harness output", report["output"]), ("test log", report["log"])):
            out += [_heading(name), *_plain(text or "(nothing)", full=True)]
    return out


def title(report: dict[str, Any]) -> str:
    """One line that names the trial and says what became of it."""
    verdict = report["verdict"]
    reward = "not verified" if verdict is None else "reward –" if verdict["reward"] is None else ""
    parts = (
        f"trial {report['trial']}",
        reward or f"reward {verdict['reward']:g}",
        report["task"],
        report["round"],
        f"policy {report['policy']}",
    )
    return one_line(" · ".join(parts))


def _heading(text: str) -> Line:
    return Line(f"── {text} ──", "title", mark=True)


def _title(report: dict[str, Any]) -> list[Line]:
    attempt = f" · attempt {report['attempt']}" if report["attempt"] > 1 else ""
    fault = f" ({report['fault']} fault): {report['reason']}" if report["fault"] else ""
    text = f"{report['harness']} · sample {report['sample']}{attempt} · {report['status']}{fault}"
    return [Line(one_line(text), "warn" if fault else "soft")]


def _turn(turn: dict[str, Any], thinking: bool, full: bool) -> list[Line]:
    out: list[Line] = []
    for message in turn["new_messages"]:
        if message["role"] != "assistant":
            out += _said(message["role"], message.get("content") or "(nothing)", "soft", full)
    notes = [note for note in (turn["kind"], turn["fate"], turn["finish"]) if note not in ("main", "delivered", "stop")]
    if turn["kind"] == "rejected":
        text = one_line(f"turn {turn['seq']} refused: {turn['status']} {turn['reason']}")
        return [*out, Line(text, "warn", mark=True)]
    if drift := drift_words(turn["drift"]):
        notes.append(drift)
    parts = [f"turn {turn['seq']}", f"{turn['sampled_tokens']} tokens of {turn['prompt_tokens']} read"]
    if turn["mean_logprob"] is not None:
        parts.append(f"mean log p {turn['mean_logprob']:.3f}")
    if turn["parent"] not in (None, turn["seq"] - 1):
        parts.append(f"after turn {turn['parent']}")
    if notes:
        parts.append(f"! {', '.join(notes)}")
    out.append(Line(one_line(" · ".join(parts)), "title", mark=True))
    return out + _reply(turn["reply"] or {}, thinking, full)


def _reply(reply: dict[str, Any], thinking: bool, full: bool) -> list[Line]:
    out: list[Line] = []
    if reply.get("reasoning"):
        text = reply["reasoning"]
        out += _said("thinking", text if thinking else f"({len(text)} characters; t shows them)", "think", full)
    if reply.get("content"):
        out += _said("says", reply["content"], "", full)
    for call in reply.get("tool_calls", []):
        out += _said(call["name"], readable_arguments(call["arguments"]) or "(no arguments)", "good", full)
    return out or _said("says", "(nothing)", "soft", full)


def _said(who: str, text: str, look: Look, full: bool) -> list[Line]:
    label = one_line(who)[:_WIDTH]
    rows = neutral(text).rstrip("\n").split("\n")
    shown = rows if full or len(rows) <= _FOLD + 1 else rows[:_FOLD]
    out = [Line(row, look, f"  {label if not number else '':<{_WIDTH}} │ ") for number, row in enumerate(shown)]
    if len(shown) < len(rows):
        out.append(Line(f"… {len(rows) - len(shown)} more lines (f shows them)", "warn", f"  {'':<{_WIDTH}} │ "))
    return out


def _plain(text: str, full: bool) -> list[Line]:
    return [Line(row, margin="  ") for row in neutral(text).rstrip("\n").split("\n")]


def _ending(report: dict[str, Any]) -> list[Line]:
    if report["status"] != "finished":
        return []
    code = "" if report["exit_code"] is None else f", exit code {report['exit_code']}"
    spent = f"{report['seconds'] or 0:.1f} s ({report['waited'] or 0:.1f} s of it waiting for the engine)"
    return [_heading("ended"), Line(one_line(f"{report['ending']}{code}, after {spent}"))]


def _verdict(report: dict[str, Any]) -> list[Line]:
    verdict = report["verdict"]
    if verdict is None:
        return [_heading("verdict"), Line("none yet", "soft")] if report["status"] == "finished" else []
    reward = "none" if verdict["reward"] is None else f"{verdict['reward']:g}"
    good = verdict["outcome"] == "passed" and not verdict["tamper"]
    out = [
        _heading("verdict"),
        Line(one_line(f"{verdict['outcome']}, reward {reward}: {why(verdict)}"), "good" if good else "bad"),
    ]
    out += [
        Line(one_line(f"! {found['kind']}: {found['path']} {found['detail']}"), "warn") for found in verdict["tamper"]
    ]
    return [*out, *([Line(one_line(f"trust: {verdict['trust']}"), "soft")] if verdict["trust"] else [])]


def _samples(samples: Sequence[dict[str, Any]]) -> list[Line]:
    out = [_heading("samples")] if samples else []
    for sample in samples:
        state = (
            f"dropped: {sample['dropped']}"
            if sample["dropped"]
            else f"{sample['tokens']} tokens, advantage {sample['advantage']:+.3f}, weight {sample['weight']:.2f}"
        )
        out.append(Line(one_line(f"step {sample['step']}, segment {sample['segment']}: {state}")))
    return out
