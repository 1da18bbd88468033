"""A whole trial of a real harness with something going wrong in it: what its rows say, and proof of what is trained.

The log-prob of each sampled token hangs on every id before it, so that a token that was put into another context, or
re-tokenised, is found out by scoring the segments again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from aiohttp import web

from lego.config.load import load
from lego.engine.base import FloatArray, GenerationRequest, IntArray, Sampled
from lego.engine.forced import Aside, Forced
from lego.harness.spec import HarnessSpec
from lego.probes.proof import Captured, capture
from lego.proxy.app import Proxy
from lego.rollout.run import open_run
from lego.rollout.settings import RoundSettings, settings_for
from lego.rollout.site import Site
from lego.rollout.trial import run_trial
from lego.rundb import calls, rounds, trials
from lego.rundb.store import Row
from lego.sandbox.podman import Podman
from lego.trainer.assemble import cut_trial
from lego.trainer.batch import TrainSegment
from lego.trajectory.segments import Segment
from tests.proxy.families import family
from tests.proxy.parts import PlayEngine, Turn

CONFIG = """
run: {{name: faulty, dir: {folder}}}
policy: {{model: {policy}, renderer: qwen3, context: {context}}}
sandbox: {{memory: 2g, pids: 512, cpus: 2, disk: 1g, timeout: 240s}}
rollout: {{max_turns: 40, max_output_tokens: {max_output}, max_attempts: 1, concurrency: 1}}
tasks: {{train: [{{source: family, name: off-by-one, count: 1, seed: 1}}]}}
harness: {{"{harness}": 1.0}}
"""


def weigh(ids: IntArray) -> FloatArray:
    """A log-prob for each id, [n] float32: another one wherever any id before it is another."""
    at = np.arange(1, len(ids) + 1, dtype=np.uint64)
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * at * np.uint64(2654435761) % np.uint64(1 << 31)
    return np.asarray(-((np.cumsum(mixed) % np.uint64(9973)) + np.uint64(1)).astype(np.float32) / 1000, np.float32)


class Weigher:
    """Scores segments as `weigh` weighed what was sampled: `lego.probes.proof.Scorer`."""

    def score(self, segments: Sequence[TrainSegment]) -> list[FloatArray]:
        return [np.where(segment.mask, weigh(segment.ids), 0).astype(np.float32) for segment in segments]


class FaultyEngine(PlayEngine):
    """Plays turns, weighed and kept in `given` by request number. `aside` answers what no turn foresees; once it did,
    the `noise` that called for it is over."""

    def __init__(self, turns: Sequence[Turn], aside: Aside = lambda prompt: None, noise: Sequence[Turn] = ()) -> None:
        super().__init__(*turns)
        self.given: dict[int, Forced] = {}
        self._aside = aside
        self._noise = noise

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Sampled]:
        said = self._aside(request.prompt_ids)
        if said is not None:
            self.turns = [Turn("", raw=said), *(turn for turn in self.turns if turn not in self._noise)]
        if self.turns:
            whole = np.asarray(self.turns[0].raw, np.int32)[: request.sampling.max_tokens]
            logprobs = weigh(np.concatenate([request.prompt_ids, whole]))[len(request.prompt_ids) :]
            self.given[int(request.id.rpartition("/")[2])] = Forced(request.prompt_ids, whole, logprobs)
        at = 0
        pieces = cast(AsyncGenerator[Sampled, None], super().generate(request))
        try:
            async for piece in pieces:
                yield replace(piece, logprobs=logprobs[at : at + len(piece.ids)].tolist())
                at += len(piece.ids)
        finally:
            await pieces.aclose()


class FaultyProxy(Proxy):
    """A proxy of whose requests for a reply number `refused` (from 1) is answered with 429, and whose newest can be
    hung up on."""

    def __init__(self, engine: FaultyEngine, refused: int, keepalive: float) -> None:
        super().__init__(engine, family(), keepalive=keepalive)
        self._refused = refused
        self._asked = 0
        self._newest: asyncio.Transport | None = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path in ("/v1/messages", "/v1/chat/completions", "/v1/responses"):
            self._asked += 1
            self._newest = request.transport
            if self._asked == self._refused:
                error = {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "Too many requests."}
                return web.json_response({"type": "error", "error": error}, status=429, headers={"Retry-After": "1"})
        return await super()._handle(request)

    def hang_up(self) -> None:
        assert self._newest is not None
        self._newest.abort()


@dataclass(frozen=True)
class Ended:
    """A trial that is over: its row, its calls, what was sampled, and what the trainer gets of it."""

    trial: Row
    rows: list[Row]
    captured: Captured
    segments: list[Segment]
    cancelled: int
    output: str

    def said(self) -> str:
        """Everything, for a failed assertion."""
        told = [(r["seq"], r["kind"], r["fate"], r["finish"], r["status"], r["reason"], r["drift"]) for r in self.rows]
        head = {key: self.trial[key] for key in ("status", "fault", "ending", "reason", "exit_code", "submission_note")}
        return "\n".join(map(str, (head, *told, self.captured, self.output[-1500:])))


async def run_faulty(
    podman: Podman,
    spec: HarnessSpec,
    folder: Path,
    policy: Path,
    engine: FaultyEngine,
    *,
    context: int,
    max_output: int,
    refused: int,
    keepalive: float,
    ready: Callable[[FaultyProxy], None] = lambda proxy: None,
) -> Ended:
    """One trial of the checks' task, from claim to closed row. `policy` is a folder that stands for the weights;
    `ready` is given the proxy before the trial begins."""
    file, output = folder / "run.yaml", bytearray()
    text = CONFIG.format(folder=folder, policy=policy, context=context, max_output=max_output, harness=spec.where)
    file.write_text(text)
    run = open_run(load(file))
    run.specs[spec.where] = spec
    try:
        settings: RoundSettings = replace(settings_for(run.config, "train"), samples=1)
        round_ = rounds.open_round(
            run.store, "train", ordinal=1, policy_version=run.newest_policy().version,
            tasks=[(next(iter(run.tasks)), spec.where)], samples=1, settings=settings.as_dict(),
        )  # fmt: skip
        proxy = FaultyProxy(engine, refused, keepalive)
        ready(proxy)
        async with proxy:
            site = Site(
                run, round_, settings, podman, engine, family(), proxy, {},
                on_output=lambda stream, data: output.extend(data),
            )  # fmt: skip
            trial = trials.claim(run.store, round_.id)
            assert trial is not None
            await run_trial(trial, site)
        row, rows = trials.trial(run.store, trial.id), calls.of_trial(run.store, trial.id)
        assert row is not None
        cut = cut_trial(run.store, trial.id, "policy")
        captured = capture(rows, cut, engine.given, Weigher())
        return Ended(row, rows, captured, cut.segments, engine.cancelled, output.decode(errors="replace"))
    finally:
        run.store.close()
