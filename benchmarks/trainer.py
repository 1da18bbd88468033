"""The trainer's loss and backward pass beside plain ones: time, peak memory, and that the numbers are the same.

    python -m benchmarks trainer                                     # memory and time from 1k to 8k tokens, forks
    python -m benchmarks.trainer --lengths 4096 32768 --vocabulary 151936
    python -m benchmarks.trainer --bf16 [--lengths …]                # bfloat16 beside float32
    python -m benchmarks.trainer --recorded FOLDER                   # recorded batches: model folders and .npz files
    python -m benchmarks.trainer --run FOLDER                        # the trials of a run, prefixes shared and not

Every case runs in a process of its own. The peers: `plain` holds [tokens x vocabulary] logits, and where these would
be more than 0.7 billion `chunked` takes its place: it runs the output layer over 256 trained rows at a time, each
computed again in the backward pass by torch's checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Measure, show

VOCABULARY = 32_000
TRAINED = 0.4
CHUNK = 256
CLIP = (0.2, 0.2)
LENGTHS = (1024, 2048, 4096, 8192)
MOST_LOGITS = 700_000_000


@dataclass(frozen=True)
class Case:
    """One process's work. side: ours, plain or chunked. batch: a .npz of segments. rows: how many of them.

    micro: tokens a micro-batch (0: one segment each).
    """

    side: str
    model: str
    batch: str
    rows: int
    checkpoint: bool = False
    share: bool = True
    dtype: str = "float32"
    micro: int = 0


@dataclass(frozen=True)
class Found:
    """What came of a case: its numbers by name, the log-probs of its segments' owned ids, the gradient whole."""

    numbers: dict[str, float]
    logp: Any
    gradient: Any

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory(prefix="lego-bench-") as folder:
        return [*growth(Path(folder), LENGTHS), *forks(Path(folder))]


def growth(folder: Path, lengths: Sequence[int], vocabulary: int = VOCABULARY) -> list[Measure]:
    """Peak memory and time of one segment of each length; of the longest also with its layers computed again."""
    model = make_model(folder / "model", vocabulary)
    measures = []
    for tokens in lengths:
        batch = str(make_batch(folder, tokens, vocabulary))
        side = "plain" if tokens * vocabulary <= MOST_LOGITS else "chunked"
        ours, peer = (measure(Case(which, model, batch, 1)) for which in ("ours", side))
        _agree(ours, peer)
        measures += _two(f"{tokens} tokens", ours, peer, side)
        if tokens == max(lengths):
            again = measure(Case("ours", model, batch, 1, checkpoint=True))
            _agree(again, ours)
            measures += _two(f"{tokens} tokens, layers again", again, ours, "layers kept")
    return measures


def precisions(folder: Path, lengths: Sequence[int], vocabulary: int = VOCABULARY) -> list[Measure]:
    """bfloat16 arithmetic beside float32, both ours."""
    model = make_model(folder / "model", vocabulary)
    measures = []
    for tokens in lengths:
        batch = str(make_batch(folder, tokens, vocabulary))
        half, full = (measure(Case("ours", model, batch, 1, dtype=dtype)) for dtype in ("bfloat16", "float32"))
        gap = float(np.abs(half.logp - full.logp).mean())
        measures += _two(f"{tokens} tokens, bfloat16", half, full, "float32")
        measures.append(Measure(f"{tokens} tokens, bfloat16: mean |Δ log p|", "nats", gap, 0.0, "float32"))
    return measures


def forks(folder: Path) -> list[Measure]:
    """A synthetic trial with sub-agents, requests sent again and a compaction, prefixes shared and not."""
    from tests.trainer._forks import forked_trial

    return shared(folder, "forked trial", make_model(folder / "model", VOCABULARY), forked_trial(VOCABULARY, turns=16))


def of_run(folder: Path, run: Path) -> list[Measure]:
    """Each recorded trial of a run that has more than one segment, under the policy that sampled it."""
    from lego.rundb.store import Store
    from lego.trainer.assemble import cut_trial

    measures = []
    store = Store.open_read_only(run / "run.db")
    sampled_by = (
        "SELECT t.id, t.harness, p.path FROM trials t JOIN rounds r ON r.id = t.round_id "
        "JOIN policies p ON p.version = r.policy_version WHERE t.status = 'finished' ORDER BY t.id"
    )
    for row in store.rows(sampled_by):
        given = cut_trial(store, row["id"], "policy").segments
        if len(given) > 1:
            what = f"trial {row['id']} ({Path(row['harness']).stem}, {len(given)} segments)"
            measures += shared(folder, what, row["path"], given)
    store.close()
    return measures


def shared(folder: Path, what: str, model: str, given: Sequence[Any]) -> list[Measure]:
    """Segments of one trial (ids, mask, logprobs), what they begin with computed once, and for each of them."""
    from tests.trainer._forks import unique_tokens

    batch = folder / "forks.npz"
    width = max(len(segment.ids) for segment in given)
    grids = {name: np.zeros((len(given), width), kind) for name, kind in (("ids", "i4"), ("mask", "u1"), ("old", "f4"))}
    for row, segment in enumerate(given):
        n = len(segment.ids)
        grids["ids"][row, :n], grids["mask"][row, :n] = segment.ids, segment.mask
        grids["old"][row, :n] = segment.logprobs
    lengths = np.array([len(segment.ids) for segment in given])
    np.savez(batch, input_ids=grids["ids"], loss_mask=grids["mask"], old_logps=grids["old"], length=lengths,
             advantages=np.ones(len(given), "f4"))  # fmt: skip
    cases = (Case("ours", model, str(batch), len(given), share=share, micro=1 << 20) for share in (True, False))
    together, alone = (measure(case) for case in cases)
    _agree(together, alone)
    each = "segment by segment"
    return [
        Measure(f"{what}: tokens run over", "tokens", together["ran"], unique_tokens(given), "unique", "<= 1.15"),
        Measure(f"{what}: tokens run over", "tokens", together["ran"], alone["ran"], each),
        *_two(what, together, alone, each),
    ]


def recorded(folder: Path) -> list[Measure]:
    """Batches of the layout written by the TRL baseline: input_ids, loss_mask, old_logps [B, T]; length, advantages."""
    measures = []
    for path in sorted(folder.glob("batch-*.npz")):
        model = folder / json.loads(str(np.load(path)["meta"]))["model"]
        rows = 8 if "-t1024" in path.name else 1
        ours, peer = (measure(Case(side, str(model), str(path), rows)) for side in ("ours", "chunked"))
        _agree(ours, peer)
        measures += [
            Measure(f"{path.stem}: {what}", unit, ours[name], peer[name], "chunked", goal)
            for what, unit, name, goal in (
                ("speed", "tokens/CPU s", "tokens_cpu_s", ">= 1"), ("speed", "tokens/s", "tokens_s", ">= 1"),
                ("peak", "MB", "peak_mb", "<= 1"), ("loss", "", "loss", ""), ("|gradient|", "", "norm", ""),
            )
        ]  # fmt: skip
    return measures


def _two(what: str, ours: Found, peer: Found, side: str) -> list[Measure]:
    return [
        Measure(f"{what}: memory above the model", "MB", ours["grown_mb"], peer["grown_mb"], side),
        Measure(f"{what}: loss and backward", "CPU s", ours["cpu_s"], peer["cpu_s"], side),
    ]


def measure(case: Case) -> Found:
    """Run a case in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as kept:
        command = [sys.executable, "-m", "benchmarks.trainer", "--case", json.dumps(vars(case)), kept.name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{case} failed:\n{done.stderr[-2000:]}")
        with np.load(kept.name) as arrays:
            return Found(json.loads(done.stdout.splitlines()[-1]), arrays["logp"], arrays["gradient"])


def _agree(one: Found, other: Found) -> None:
    """Loss and every part of the gradient, within 1e-5 (of the largest part, where that is more than 1)."""
    bound = 1e-5 * max(1.0, float(np.abs(other.gradient).max()))
    worst = float(np.abs(one.gradient - other.gradient).max())
    if worst > bound or abs(one["loss"] - other["loss"]) > 1e-5 * max(1.0, abs(other["loss"])):
        raise AssertionError(f"loss {one['loss']} and {other['loss']}, gradients differ by {worst}")


def make_model(folder: Path, vocabulary: int) -> str:
    """A Qwen3 of 3.5M parameters beside its embedding, as the TRL baseline has it."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=vocabulary, hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4,
            num_key_value_heads=2, head_dim=64, max_position_embeddings=32768, tie_word_embeddings=True,
        )  # fmt: skip
        Qwen3ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def make_batch(folder: Path, tokens: int, vocabulary: int) -> Path:
    rng = np.random.default_rng(tokens)
    mask = (rng.random((1, tokens)) < TRAINED).astype("u1")
    mask[0, :8], mask[0, -1] = 0, 1
    path = folder / f"t{tokens}.npz"
    np.savez(path, input_ids=rng.integers(3, vocabulary, (1, tokens)).astype("i4"), loss_mask=mask,
             old_logps=np.where(mask, -np.log(vocabulary), 0).astype("f4"), length=np.array([tokens]),
             advantages=np.ones(1, "f4"))  # fmt: skip
    return path


Row = tuple[Any, Any, Any, Any]
"""ids, mask, the engine's log-probs, advantage."""
Step = Callable[[Sequence[Row]], tuple[float, int, Any]]
"""From rows to loss, tokens run over, and log-probs of owned ids; adds up the gradient."""


def work(case: Case, kept: Path) -> dict[str, float]:
    """Loss and backward over the case's rows, one micro-batch a segment unless it says otherwise."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    held = np.load(case.batch)
    rows = [(held["input_ids"][i][:n], held["loss_mask"][i][:n] > 0, held["old_logps"][i][:n], held["advantages"][i])
            for i, n in enumerate(held["length"][: case.rows])]  # fmt: skip
    model, step = (_ours if case.side == "ours" else _peer)(case)
    ids, mask, old, advantage = rows[0]
    few = int(np.flatnonzero(mask)[7]) + 1
    step([(ids[:few], mask[:few], old[:few], advantage)])  # what is loaded and allocated once is not measured
    model.zero_grad(set_to_none=True)
    Path("/proc/self/clear_refs").write_text("5")
    before, wall, cpu = _status("VmRSS"), time.perf_counter(), time.process_time()
    loss, ran, logp = step(rows)
    wall, cpu, peak = time.perf_counter() - wall, time.process_time() - cpu, _status("VmHWM")
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()
    np.savez(kept, logp=logp, gradient=gradient)
    tokens = sum(len(ids) for ids, *_ in rows)
    return {
        "loss": loss, "norm": float(np.linalg.norm(gradient.astype(np.float64))), "cpu_s": cpu, "peak_mb": peak,
        "grown_mb": peak - before, "tokens_s": tokens / wall, "tokens_cpu_s": tokens / cpu, "ran": ran,
    }  # fmt: skip


def _ours(case: Case) -> tuple[Any, Step]:
    from lego.config.schema import CorrectionSection, ObjectiveSection, TrainSection
    from lego.trainer.batch import TrainSegment, pack
    from lego.trainer.gradient import Gradient
    from lego.trainer.policy import Policy

    policy = Policy(Path(case.model), dtype=case.dtype, device="cpu", checkpoint_layers=case.checkpoint)
    section = TrainSection(
        objective=ObjectiveSection("grpo", clip_low=CLIP[0], clip_high=CLIP[1]),
        correction=CorrectionSection(old="bypass"), share_prefixes=case.share,
        micro_batch_tokens=case.micro or 1,
    )  # fmt: skip
    worker = Gradient(policy, section, 1.0, longest=1)

    def step(rows: Sequence[Row]) -> tuple[float, int, Any]:
        segments = [TrainSegment(i, ids, mask, old, float(a)) for i, (ids, mask, old, a) in enumerate(rows)]
        scored, metrics = worker.accumulate(segments)
        batches = pack(segments, section.micro_batch_tokens, policy.layout(case.share))
        logp = np.concatenate([row[segment.mask] for row, segment in zip(scored, segments, strict=True)])
        return metrics["step/loss"].total, sum(batch.ids.numel() for batch in batches), logp

    return policy.model, step


def _peer(case: Case) -> tuple[Any, Step]:
    import torch
    from torch.utils.checkpoint import checkpoint
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(case.model, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    model.train()

    def chunk(states: Any, weight: Any, wanted: Any) -> Any:
        logits = states @ weight.t()
        return logits.gather(-1, wanted[:, None])[:, 0] - logits.logsumexp(-1)

    def logprobs(ids: Any, mask: Any) -> Any:
        wanted, owned = ids[0, 1:], mask[1:]
        if case.side == "plain":
            return model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, wanted[:, None])[:, 0][owned]
        states = model.model(input_ids=ids).last_hidden_state[0, :-1][owned]
        parts = zip(states.split(CHUNK), wanted[owned].split(CHUNK), strict=True)
        return torch.cat([checkpoint(chunk, s, model.lm_head.weight, w, use_reentrant=False) for s, w in parts])

    def step(rows: Sequence[Row]) -> tuple[float, int, Any]:
        total, tokens, scored = 0.0, 0, []
        for ids, mask, old, advantage in rows:
            owned = torch.from_numpy(mask)
            logp = logprobs(torch.from_numpy(ids.astype(np.int64))[None], owned)
            ratio = (logp - torch.from_numpy(old)[owned]).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP[0], 1 + CLIP[1]) * advantage)
            loss = -gain.mean() / len(rows)
            loss.backward()
            total, tokens = total + float(loss.detach()), tokens + len(ids)
            scored.append(logp.detach().numpy())
        return total, tokens, np.concatenate(scored)

    return model, step


def _status(key: str) -> float:
    """MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--recorded", type=Path, metavar="FOLDER")
    parser.add_argument("--run", type=Path, metavar="FOLDER")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(work(Case(**json.loads(given.case[0])), Path(given.case[1]))))
        return
    with tempfile.TemporaryDirectory(prefix="lego-bench-") as name:
        folder = Path(name)
        if given.recorded:
            show("recorded batches", recorded(given.recorded))
        elif given.run:
            show("trials of a run", of_run(folder, given.run))
        else:
            sides = precisions if given.bf16 else growth
            show(f"one segment, {given.vocabulary} ids", sides(folder, given.lengths, given.vocabulary))


if __name__ == "__main__":
    main()
