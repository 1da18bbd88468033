"""The trainer's loss and backward pass beside plain ones: time, peak memory, and that the numbers are the same.

    python -m benchmarks trainer                                     # memory and time from 1k to 8k tokens, forks
    python -m benchmarks.trainer --long                              # the same to 32k tokens
    python -m benchmarks.trainer --recorded FOLDER [--bf16]          # recorded batches: model folders and .npz files

Every case runs in a process of its own. The peers: `plain` holds [tokens x vocabulary] logits; `chunked` runs the
output layer over 256 trained rows at a time, each computed again in the backward pass by torch's checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Measure

VOCABULARY = 32_000
TRAINED = 0.4
CHUNK = 256
CLIP = (0.2, 0.2)
SHORT, LONG = (1024, 2048, 4096, 8192), (1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class Case:
    """One process's work. batch: a .npz of segments. rows: how many of them. ours, plain or chunked by `side`."""

    side: str
    model: str
    batch: str
    rows: int
    checkpoint: bool = False
    share: bool = True
    dtype: str = "float32"
    micro: int = 0


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory(prefix="lego-bench-") as folder:
        return [*growth(Path(folder), SHORT), *forks(Path(folder))]


def growth(folder: Path, lengths: tuple[int, ...], limit: int = 8192) -> list[Measure]:
    """Peak memory and time of one segment of each length. Beyond `limit` tokens the plain side would need more memory
    than a laptop has, and the chunked one is the peer."""
    model = make_model(folder / "model")
    measures = []
    for tokens in lengths:
        batch = str(make_batch(folder, tokens))
        side = "plain" if tokens <= limit else "chunked"
        ours, peer = (measure(Case(which, model, batch, 1, checkpoint=tokens > limit)) for which in ("ours", side))
        _agree(ours, peer)
        measures += [
            Measure(f"{tokens} tokens: memory above the model", "MB", ours["grown_mb"], peer["grown_mb"], side),
            Measure(f"{tokens} tokens: loss and backward", "CPU s", ours["cpu_s"], peer["cpu_s"], side),
        ]
    return measures


def forks(folder: Path) -> list[Measure]:
    """A trial with sub-agents, requests sent again and a compaction, prefixes shared and not."""
    from tests.trainer._forks import forked_trial, unique_tokens

    model = make_model(folder / "model")
    given = forked_trial(VOCABULARY, turns=16)
    batch = folder / "forks.npz"
    width = max(len(segment.ids) for segment in given)
    grids = {name: np.zeros((len(given), width), kind) for name, kind in (("ids", "i4"), ("mask", "u1"), ("old", "f4"))}
    for row, segment in enumerate(given):
        n = len(segment.ids)
        grids["ids"][row, :n], grids["mask"][row, :n] = segment.ids, segment.mask
        grids["old"][row, :n] = np.where(segment.mask, -10.0, 0)
    lengths = np.array([len(segment.ids) for segment in given])
    np.savez(batch, input_ids=grids["ids"], loss_mask=grids["mask"], old_logps=grids["old"], length=lengths,
             advantages=np.ones(len(given), "f4"))  # fmt: skip
    cases = (Case("ours", model, str(batch), len(given), share=share, micro=1 << 20) for share in (True, False))
    shared, alone = (measure(case) for case in cases)
    _agree(shared, alone)
    unique = unique_tokens(given)
    return [
        Measure("forked trial: tokens run over", "tokens", shared["run_over"], unique, "unique tokens", "<= 1.15"),
        Measure("forked trial: loss and backward", "CPU s", shared["cpu_s"], alone["cpu_s"], "segment by segment"),
        Measure("forked trial: memory above the model", "MB", shared["grown_mb"], alone["grown_mb"], "the same"),
    ]


def recorded(folder: Path, dtype: str) -> list[Measure]:
    """Batches of the layout written by the TRL baseline: input_ids, loss_mask, old_logps [B, T]; length, advantages."""
    measures = []
    for path in sorted(folder.glob("batch-*.npz")):
        model = folder / json.loads(str(np.load(path)["meta"]))["model"]
        rows = 8 if "-t1024" in path.name else 1
        sides = {side: measure(Case(side, str(model), str(path), rows, dtype=dtype)) for side in ("ours", "chunked")}
        if dtype == "float32":
            _agree(sides["ours"], sides["chunked"])
        ours, peer = sides["ours"], sides["chunked"]
        measures += [
            Measure(f"{path.stem}: tokens", "tokens/CPU s", ours["tokens_cpu_s"], peer["tokens_cpu_s"], "chunked"),
            Measure(f"{path.stem}: peak", "MB", ours["peak_mb"], peer["peak_mb"], "chunked"),
        ]
        loss, norm = ours["loss"], ours["norm"]
        print(f"{path.stem} {dtype}: loss {loss:.8f} (chunked {peer['loss']:.8f}), |gradient| {norm:.7g} "
              f"({peer['norm']:.7g}); wall {ours['wall_s']:.2f} s ({peer['wall_s']:.2f})", flush=True)  # fmt: skip
    return measures


def measure(case: Case) -> dict[str, float]:
    """Run a case in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trainer", "--case", json.dumps(vars(case))], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{case} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _agree(one: dict[str, float], other: dict[str, float]) -> None:
    for name, tolerance in (("loss", 1e-5), ("norm", 1e-3)):
        if abs(one[name] - other[name]) > tolerance * max(1.0, abs(other[name])):
            raise AssertionError(f"{name}: {one[name]} and {other[name]}")


def make_model(folder: Path) -> str:
    """A Qwen3 of 3.5M parameters beside its embedding, as the TRL baseline has it."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4,
            num_key_value_heads=2, head_dim=64, max_position_embeddings=32768, tie_word_embeddings=True,
        )  # fmt: skip
        Qwen3ForCausalLM(config).save_pretrained(folder)
    return str(folder)


def make_batch(folder: Path, tokens: int) -> Path:
    rng = np.random.default_rng(tokens)
    mask = (rng.random((1, tokens)) < TRAINED).astype("u1")
    mask[0, :8], mask[0, -1] = 0, 1
    path = folder / f"t{tokens}.npz"
    np.savez(path, input_ids=rng.integers(3, VOCABULARY, (1, tokens)).astype("i4"), loss_mask=mask,
             old_logps=np.where(mask, -10.4, 0).astype("f4"), length=np.array([tokens]),
             advantages=np.ones(1, "f4"))  # fmt: skip
    return path


def work(case: Case) -> dict[str, float]:
    """Loss and backward over the case's rows, one micro-batch a segment unless it says otherwise."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    held = np.load(case.batch)
    rows = [(held["input_ids"][i][:n], held["loss_mask"][i][:n] > 0, held["old_logps"][i][:n], held["advantages"][i])
            for i, n in enumerate(held["length"][: case.rows])]  # fmt: skip
    model, step = (_ours if case.side == "ours" else _peer)(case, rows)
    step()  # what is loaded and allocated once is not measured
    model.zero_grad(set_to_none=True)
    Path("/proc/self/clear_refs").write_text("5")
    before, wall, cpu = _status("VmRSS"), time.perf_counter(), time.process_time()
    loss, run_over = step()
    wall, cpu, peak = time.perf_counter() - wall, time.process_time() - cpu, _status("VmHWM")
    norm = sum(float(p.grad.double().square().sum()) for p in model.parameters()) ** 0.5
    tokens = sum(len(ids) for ids, *_ in rows)
    return {
        "loss": loss, "norm": norm, "wall_s": wall, "cpu_s": cpu, "peak_mb": peak, "grown_mb": peak - before,
        "tokens_cpu_s": tokens / cpu, "run_over": run_over,
    }  # fmt: skip


def _ours(case: Case, rows: list[tuple[Any, ...]]) -> tuple[Any, Callable[[], tuple[float, int]]]:
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
    segments = [TrainSegment(i, ids, mask, old, float(a)) for i, (ids, mask, old, a) in enumerate(rows)]

    def step() -> tuple[float, int]:
        _, metrics = worker.accumulate(segments)
        batches = pack(segments, section.micro_batch_tokens, policy.layout(case.share))
        return metrics["step/loss"].total, sum(batch.ids.numel() for batch in batches)

    return policy.model, step


def _peer(case: Case, rows: list[tuple[Any, ...]]) -> tuple[Any, Callable[[], tuple[float, int]]]:
    import torch
    from torch.utils.checkpoint import checkpoint
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(case.model, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    model.train()
    if case.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def chunk(states: Any, weight: Any, wanted: Any) -> Any:
        logits = (states @ weight.t()).float()
        return logits.gather(-1, wanted[:, None])[:, 0] - logits.logsumexp(-1)

    def logprobs(ids: Any, mask: Any) -> Any:
        wanted, owned = ids[0, 1:], mask[1:]
        if case.side == "plain":
            return model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, wanted[:, None])[:, 0][owned]
        states = model.model(input_ids=ids).last_hidden_state[0, :-1][owned]
        parts = zip(states.split(CHUNK), wanted[owned].split(CHUNK), strict=True)
        return torch.cat([checkpoint(chunk, s, model.lm_head.weight, w, use_reentrant=False) for s, w in parts])

    def step() -> tuple[float, int]:
        total, tokens = 0.0, 0
        for ids, mask, old, advantage in rows:
            owned = torch.from_numpy(mask)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.dtype == "bfloat16"):
                logp = logprobs(torch.from_numpy(ids.astype(np.int64))[None], owned)
            ratio = (logp - torch.from_numpy(old)[owned]).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP[0], 1 + CLIP[1]) * advantage)
            loss = -gain.mean() / len(rows)
            loss.backward()
            total, tokens = total + float(loss.detach()), tokens + len(ids)
        return total, tokens

    return model, step


def _status(key: str) -> float:
    """MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    from benchmarks.measure import show

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", type=Path, metavar="FOLDER")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(work(Case(**json.loads(given.case)))))
    elif given.recorded:
        show("recorded batches", recorded(given.recorded, "bfloat16" if given.bf16 else "float32"))
    else:
        with tempfile.TemporaryDirectory(prefix="lego-bench-") as folder:
            show("one long segment", growth(Path(folder), LONG if given.long else SHORT))
            show("a forked trial", forks(Path(folder)))


if __name__ == "__main__":
    main()
