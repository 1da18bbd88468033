"""`make learn`: six runs that show whether the circle learns, and the page that tells it.

    python tools/learn.py [--dir FOLDER] [--only NAME]      run what is not done yet, then write the page
    python tools/learn.py --page                            write the page from docs/learn/*.json alone

Each run is `lego sft`, then `lego loop`, with configs/learn.yaml. Killed, it goes on where it was; once done, its
result stays as docs/learn/NAME.json, and the run is not repeated. docs/learn.md holds no number that is not
from those files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lego.config.load import load
from lego.evaluation import sign_test
from lego.report.curves import Curve, Point
from lego.report.svg import chart
from lego.rundb import meta, rounds, training, verdicts
from lego.rundb.paths import run_db
from lego.rundb.store import Store
from lego.tasks.load import load_all

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "learn.yaml"
RESULTS = ROOT / "docs" / "learn"
PAGE = ROOT / "docs" / "learn.md"
MARKER = "<!-- what follows is written by tools/learn.py from docs/learn/*.json -->"

# With one optimizer step a round every ratio is 1, and GRPO's update is GSPO's: two steps make it another run.
_GRPO = (
    "train.minibatches=2",
    "train.objective.name=grpo",
    "train.objective.clip_low=0.2",
    "train.objective.clip_high=0.28",
    "train.optimizer.lr=5e-5",
)
RUNS: Mapping[str, tuple[str, ...]] = {
    "gspo-1": ("run.seed=1",),
    "gspo-2": ("run.seed=2",),
    "gspo-3": ("run.seed=3",),
    "grpo-1": ("run.seed=1", *_GRPO),
    "shuffled-1": ("run.seed=1", "train.shuffle_rewards=true"),
    # The bound of mean |d log p| is train.gate's own for the dtype: rounding alone is above that of configs/learn.yaml.
    "bf16-1": ("run.seed=1", "engine.dtype=bfloat16", "train.gate.mean_logp_gap=0"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", default="runs", help="folder that holds the runs")
    parser.add_argument("--only", choices=sorted(RUNS), help="this run alone")
    parser.add_argument("--page", action="store_true", help="run nothing")
    options = parser.parse_args(arguments)
    for name in () if options.page else [options.only] if options.only else RUNS:
        target = RESULTS / f"{name}.json"
        if not target.is_file():
            overrides = [*RUNS[name], f"run.name=learn-{name}", f"run.dir={options.dir}"]
            for stage in ("build-images", "sft", "loop"):
                print(f"\n{name}: lego {stage}", flush=True)
                command = [str(Path(sys.executable).with_name("lego")), stage, "-c", str(CONFIG), *overrides]
                if code := subprocess.run(command, cwd=ROOT).returncode:
                    return code
            RESULTS.mkdir(exist_ok=True)
            target.write_text(json.dumps(gather(name, overrides), indent=1) + "\n", encoding="utf-8")
    write_page(RESULTS, PAGE)
    return 0


def gather(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The result of a finished run, from its database."""
    loaded = load(str(CONFIG), list(overrides))
    config = loaded.config
    _, held_out = load_all(config.tasks)
    about = {task.id: task.metadata for task in held_out}
    store = Store.open_read_only(run_db(config.run.dir, config.run.name))
    try:
        evals = [_evaluation(store, row, about) for row in training.evals(store)]
        steps = [step for step in training.steps(store) if step["kind"] == "rl"]
        begun, ended = store.rows("SELECT min(opened_at) AS at FROM rounds UNION ALL SELECT max(closed_at) FROM rounds")
        return {
            "name": name,
            "objective": config.train.objective.name,
            "seed": config.run.seed,
            "lr": config.train.optimizer.lr,
            "shuffled": config.train.shuffle_rewards,
            "dtype": config.engine.dtype,
            "evals": evals,
            "compared": _compared(evals[0], evals[-1]),
            "rounds": [_step(store, step) for step in steps],
            "faults": dict(Counter(row["fault"] for row in store.rows("SELECT fault FROM trials WHERE fault <> ''"))),
            "trials": store.value("SELECT count(*) FROM trials WHERE status = 'finished'"),
            "seconds": round(ended["at"] - begun["at"]),
            "commit": meta.get(store, "git_commit") or "",
        }
    finally:
        store.close()


def _evaluation(store: Store, row: Mapping[str, Any], about: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """One evaluation: its rate and interval, which tasks were solved, and how many by operator and by level."""
    graded = verdicts.graded(store, row["round_id"])
    solved = sorted({trial["task_id"] for trial in graded if trial["solved"]})
    parts: dict[str, dict[str, list[int]]] = {
        "operator": defaultdict(lambda: [0, 0]),
        "level": defaultdict(lambda: [0, 0]),
    }
    for trial in graded:
        for kind, counts in parts.items():
            counts[about[trial["task_id"]][kind]][0] += bool(trial["solved"])
            counts[about[trial["task_id"]][kind]][1] += 1
    return {
        "policy": row["policy_version"],
        "temperature": row["detail"]["temperature"],
        "n": row["n"],
        "passed": row["passed"],
        "rate": row["rate"],
        "low": row["low"],
        "high": row["high"],
        "solved": [task.rpartition("-")[2] for task in solved],
        **{f"by_{kind}": {key: counts[key] for key in sorted(counts)} for kind, counts in parts.items()},
    }


def _compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Tasks that only one of the two policies solves, and the exact sign test's p."""
    better = len(set(after["solved"]) - set(before["solved"]))
    worse = len(set(before["solved"]) - set(after["solved"]))
    return {"better": better, "worse": worse, "p": sign_test(better, worse)}


def _step(store: Store, step: Mapping[str, Any]) -> dict[str, Any]:
    metrics = step["metrics"]
    names = ("reward/mean", "proof/correlation", "proof/mean_gap", "step/dropped", "group/flat", "step/grad_norm")
    ordinal = rounds.get(store, step["round_id"]).ordinal
    return {"round": ordinal, "status": step["status"], **{n: metrics[n] for n in names if n in metrics}}


def write_page(results: Path, page: Path) -> None:
    """The pictures beside the results, and everything below the marker of the page."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    words = page.read_text(encoding="utf-8").partition(MARKER)[0]
    for result in found:
        (results / f"{result['name']}.svg").write_text(_picture(result), encoding="utf-8")
    page.write_text(words + MARKER + "\n" + "\n".join(_told(found)), encoding="utf-8")


_STYLE = (
    "<style>text{font:11px sans-serif;fill:#444}.rule{stroke:#ddd}.curve{stroke:#06c;stroke-width:1.5}"
    ".bar{stroke:#06c;fill:none}circle{fill:#06c}</style><rect width='100%' height='100%' fill='white'/>"
)


def _picture(result: Mapping[str, Any]) -> str:
    """The held-out curve as a file of its own."""
    points = tuple(Point(e["policy"], e["rate"], e["low"], e["high"]) for e in result["evals"])
    picture = chart(Curve("eval", f"{result['name']}, held-out pass@1, greedy", "policy", points, rate=True))
    head, _, rest = picture.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg" width="420">{_STYLE}{rest}\n'


def _told(found: Sequence[Mapping[str, Any]]) -> list[str]:
    if not found:
        return ["", "No run is finished yet.", ""]
    lines = [
        "",
        "| run | objective | seed | before | after | rise | wider than the interval | only after / only before, p |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for result in found:
        first, last, compared = result["evals"][0], result["evals"][-1], result["compared"]
        rise = last["rate"] - first["rate"]
        width = max(first["high"] - first["low"], last["high"] - last["low"])
        lines.append(
            f"| {result['name']} | {_kind(result)} "
            f"| {result['seed']} | {_rate(first)} | {_rate(last)} | {rise:+.3f} "
            f"| {'yes' if rise > width else 'no'} ({width:.3f}) "
            f"| {compared['better']} / {compared['worse']}, {compared['p']:.1e} |"
        )
    for kind in ("operator", "level"):
        keys = sorted({key for result in found for key in result["evals"][0][f"by_{kind}"]})
        lines += ["", f"Solved by {kind}, before → after:", "", f"| run | {' | '.join(f'`{k}`' for k in keys)} |"]
        lines.append("|---" * (len(keys) + 1) + "|")
        for result in found:
            first, last = (result["evals"][at][f"by_{kind}"] for at in (0, -1))
            cells = [f"{first[k][0]} → {last[k][0]} of {last[k][1]}" if k in first else "" for k in keys]
            lines.append(f"| {result['name']} | {' | '.join(cells)} |")
    lines += ["", "Proof, over all rounds of a run:", ""]
    lines.append("| run | rounds | trials | hours | smallest correlation | largest mean gap | dropped | faults |")
    lines.append("|---" * 8 + "|")
    for result in found:
        steps = [step for step in result["rounds"] if "proof/correlation" in step]
        faults = ", ".join(f"{name} {count}" for name, count in sorted(result["faults"].items())) or "none"
        lines.append(
            f"| {result['name']} | {len(result['rounds'])} | {result['trials']} | {result['seconds'] / 3600:.2f} "
            f"| {min(step['proof/correlation'] for step in steps):.6f} "
            f"| {max(step['proof/mean_gap'] for step in steps):.1e} "
            f"| {sum(step['step/dropped'] for step in steps):.0f} | {faults} |"
        )
    for result in found:
        lines += ["", f"{result['name']}:", "", f"![{result['name']}](learn/{result['name']}.svg)"]
    return [*lines, ""]


def _kind(result: Mapping[str, Any]) -> str:
    apart = {"rewards exchanged": result["shuffled"], result["dtype"]: result["dtype"] != "float32"}
    return ", ".join([result["objective"], *(name for name, is_so in apart.items() if is_so)])


def _rate(evaluation: Mapping[str, Any]) -> str:
    return f"{evaluation['rate']:.3f} [{evaluation['low']:.3f}, {evaluation['high']:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
