"""`lego status`: where a run stands, from its database alone."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lego.plain import neutral
from lego.rundb.training import gap_words
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.rundb.store import Store


@click.command()
@config_options
def command(loaded: Loaded, as_json: bool) -> None:
    """Say where a run stands and whether something looks wrong. Reads only; safe beside running stages."""
    from lego.rundb.paths import run_db
    from lego.rundb.store import Store

    store = Store.open_read_only(run_db(loaded.config.run.dir, loaded.config.run.name))
    report = gather(store) | {"tamper": loaded.config.verify.tamper}
    if as_json:
        print_json(report)
    else:
        click.echo("\n".join(lines(loaded.config.run.name, report, loaded.config.loop.rounds)))


_STEP = ("step", "kind", "status", "reason", "policy_from", "policy_to", "metrics", "worst")


def gather(store: Store) -> dict[str, Any]:
    """Everything `lego status` says, as plain data."""
    from lego.report.change import change, told
    from lego.rundb import catalogue, meta, rounds, training, verdicts
    from lego.rundb.signatures import look
    from lego.rundb.summary import summarise

    all_rounds = rounds.all_rounds(store)
    changed = change(store)
    images = catalogue.images(store)
    return {
        "began": store.value("SELECT min(at) FROM policies"),
        "tasks": {split: len(catalogue.task_ids(store, split)) for split in ("train", "eval")},
        "images": {
            status: sum(image["status"] == status for image in images) for status in ("built", "cached", "failed")
        },
        "policies": [
            {key: row[key] for key in ("version", "parent", "made_by", "digest", "path")}
            for row in catalogue.policies(store)
        ],
        "rounds": [
            {
                "kind": round_.kind,
                "ordinal": round_.ordinal,
                "policy": round_.policy_version,
                "open": round_.open,
                **asdict(summarise(store, round_)),
                "tampering": verdicts.tampering(store, round_.id),
            }
            for round_ in all_rounds[-12:]
        ],
        "steps": [
            {
                key: row[key]
                for key in ("step", "kind", "status", "reason", "policy_from", "policy_to", "metrics", "worst")
            }
            for row in training.steps(store)
        ],
        "evals": training.evals(store),
        "change": told(changed) if changed else None,
        "events": [event["text"] for event in meta.events(store, 5)],
        "wrong": look(store),
    }


def lines(name: str, report: dict[str, Any], wanted: int) -> list[str]:
    """The report for a person, at most 80 columns where the data allow."""
    train = [round_ for round_ in report["rounds"] if round_["kind"] == "train"]
    newest = report["policies"][-1]["version"] if report["policies"] else None
    head = [name]
    if train:
        head.append(f"round {train[-1]['ordinal']} of {max(wanted, train[-1]['ordinal'])}")
    if newest is not None:
        head.append(f"policy {newest}")
    out = [" · ".join(head)]
    built = report["images"]["built"] + report["images"]["cached"]
    if built or report["images"]["failed"]:
        failed = f"   failed {report['images']['failed']}" if report["images"]["failed"] else ""
        out.append(f" build-images  {built} of {built + report['images']['failed']}{failed}")
    for round_ in report["rounds"][-6:]:
        out += _round_lines(round_)
        out += _tamper_lines(round_["tampering"], report.get("tamper", ""))
    for step in report["steps"][-4:]:
        out.append(_step_line(step))
        out += _worst_lines(step) if step["status"] == "refused" else []
    if report["evals"]:
        shown = "   ".join(
            f"v{row['policy_version']} {row['rate']:.2f} [{row['low']:.2f}-{row['high']:.2f}]"
            for row in report["evals"][-4:]
        )
        out.append(f" eval          {shown}")
    if report["change"]:
        out += _wrapped(f" {report['change']}")
    for line in report["wrong"]:
        out += _wrapped(f" ! {line}")
    if not report["wrong"]:
        out.append(" nothing looks wrong.")
    return out


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 80, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)


def _round_lines(round_: dict[str, Any]) -> list[str]:
    state = "open" if round_["open"] else "closed"
    title = f"{round_['kind']} {round_['ordinal']}"
    extras = [f"{key} {count}" for key, count in round_["endings"].items() if key != "exit"]
    if round_["infra"]:
        extras.append(f"infra {round_['infra']}")
    done = f"{round_['done']} of {round_['slots']} trials"
    out = ["   ".join([f" {title:<13} {done}", state, f"policy {round_['policy']}", *extras])]
    if round_["finished"]:
        more = [f"{key} {round_['outcomes'][key]}" for key in ("broken", "error") if round_["outcomes"].get(key)]
        if round_["tampered"]:
            more.append(f"tamper {round_['tampered']}")
        reward = f"   reward {round_['reward']:.2f}" if round_["reward"] is not None else ""
        verified = f"{round_['verified']} of {round_['finished']}"
        out.append("   ".join([f"   verify      {verified}", f"solved {round_['solved']}{reward}", *more]))
    return out


_HANDLED = {"exclude": "excluded", "penalise": "reward 0", "flag": "only flagged"}


def _tamper_lines(tampering: dict[str, list[int]], policy: str) -> list[str]:
    """Which trials tried to influence their grading, and how, and what becomes of them."""
    told = []
    for kind, trials in list(tampering.items())[:4]:
        some = ", ".join(map(str, trials[:4])) + (", …" if len(trials) > 4 else "")
        told.append(f"{kind} (trial{'s' if len(trials) > 1 else ''} {some})")
    more = f"; {len(tampering) - 4} more kinds" if len(tampering) > 4 else ""
    return _wrapped(f"   {_HANDLED.get(policy, 'tamper')}: {'; '.join(told)}{more}") if told else []


def _step_line(step: dict[str, Any]) -> str:
    metrics = step["metrics"]
    named = (
        ("proof/correlation", "correlation", ".4f"),
        ("proof/mean_gap", "|dlogp|", ".1e"),
        ("sft/loss", "loss", ".3f"),
        ("step/grad_norm", "grad", ".2f"),
    )
    shown = "   ".join(f"{label} {metrics[key]:{form}}" for key, label, form in named if key in metrics)
    to = f"policy {step['policy_from']} -> {step['policy_to']}" if step["policy_to"] is not None else step["reason"]
    return f" {step['kind']} step {step['step']:<5} {step['status']}   {to}   {shown}".rstrip()


def _worst_lines(step: dict[str, Any]) -> list[str]:
    """The tokens of a refused step that trainer and engine disagree on most."""
    return [neutral(f"   {gap_words(gap)}") for gap in step["worst"][:5]]
