from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lego.engine.base import GenerationRequest, PolicyRef, Sampled, Sampling
from lego.engine.digest import folder_digest
from lego.engine.transformers import TransformersEngine
from lego.errors import EngineError
from tests._tiny import make_policy

PROMPT = np.arange(20, 60, dtype=np.int32)


async def generate(
    engine: TransformersEngine,
    prompt: np.ndarray = PROMPT,
    n: int = 30,
    temperature: float = 0.7,
    stop: tuple[int, ...] = (),
    seed: int | None = 1,
    session: str = "s",
) -> tuple[list[int], list[float], str | None]:
    ids: list[int] = []
    logprobs: list[float] = []
    finishes = []
    request = GenerationRequest("r", session, prompt, Sampling(n, temperature, stop, seed))
    async for piece in engine.generate(request):
        assert len(piece.ids) == len(piece.logprobs) > 0
        ids += piece.ids
        logprobs += piece.logprobs
        finishes.append(piece.finish)
    assert all(finish is None for finish in finishes[:-1])
    return ids, logprobs, finishes[-1]


def ref(path: Path, version: int = 1) -> PolicyRef:
    return PolicyRef(version, str(path), folder_digest(path))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
async def test_log_probs_equal_teacher_forcing(engine: TransformersEngine, temperature: float) -> None:
    prompts = [np.arange(20, 20 + n, dtype=np.int32) for n in (5, 40, 90, 17, 60, 33)]  # more than run at once
    replies = await asyncio.gather(
        *(generate(engine, p, 50, temperature, seed=i, session=f"s{i}") for i, p in enumerate(prompts))
    )
    for prompt, (ids, logprobs, finish) in zip(prompts, replies, strict=True):
        assert finish == "length" and len(ids) == 50
        scored = await engine.score(np.concatenate([prompt, np.asarray(ids, np.int32)]), len(prompt), temperature)
        assert scored.dtype == np.float32
        assert np.abs(scored - np.asarray(logprobs)).max() < 1e-4


async def test_score_is_the_models_own_forward_pass(engine: TransformersEngine, tiny_policy: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 300, 2300).astype(np.int32)  # several passes
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    with torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
    logp = torch.log_softmax(logits / 1.3, -1)[:-1].gather(1, torch.from_numpy(ids.astype(np.int64))[1:, None])[:, 0]
    for start in (1, 700, 1024, 1025, 2299):
        got = await engine.score(ids, start, 1.3)
        np.testing.assert_allclose(got, logp[start - 1 :].numpy(), atol=1e-4)


async def test_greedy_is_what_transformers_generates(engine: TransformersEngine, tiny_policy: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    prompt = torch.from_numpy(PROMPT.astype(np.int64))[None]
    want = model.generate(prompt, max_new_tokens=30, do_sample=False, eos_token_id=None)[0, prompt.shape[1] :]
    ids, _, _ = await generate(engine, temperature=0.0)
    assert ids == want.tolist()


async def test_a_seed_gives_the_same_reply_whatever_runs_beside_it(engine: TransformersEngine) -> None:
    alone, _, _ = await generate(engine, seed=7)
    beside = [generate(engine, PROMPT[: 10 + i], 40, seed=i, session=f"o{i}") for i in range(3)]
    together, *_ = await asyncio.gather(generate(engine, seed=7, session="new"), *beside)
    assert together[0] == alone
    assert (await generate(engine, seed=8))[0] != alone


async def test_the_stop_id_ends_and_belongs_to_the_reply(engine: TransformersEngine) -> None:
    free, _, _ = await generate(engine, n=30)
    stop = free[12]
    ids, logprobs, finish = await generate(engine, n=30, stop=(stop,))
    assert finish == "stop"
    assert ids == free[: free.index(stop) + 1]
    assert len(logprobs) == len(ids)


async def test_a_second_turn_reuses_the_first(engine: TransformersEngine, tiny_policy: Path) -> None:
    ids, _, _ = await generate(engine)
    before = engine.stats()
    longer = np.concatenate([PROMPT, np.asarray(ids, np.int32), np.arange(9, 19, dtype=np.int32)])
    warm, _, _ = await generate(engine, longer, seed=3)
    after = engine.stats()
    # All but the last sampled id, which was never fed.
    assert after.reused_tokens - before.reused_tokens == len(PROMPT) + len(ids) - 1
    assert after.sampled_tokens - before.sampled_tokens == 30
    await engine.load(ref(tiny_policy))
    cold, _, _ = await generate(engine, longer, seed=3)
    assert engine.stats().reused_tokens == after.reused_tokens  # a swap drops every prefix
    assert warm == cold


async def test_an_ended_session_keeps_nothing(engine: TransformersEngine) -> None:
    await generate(engine)
    engine.end_session("s")
    before = engine.stats().reused_tokens
    await generate(engine)
    assert engine.stats().reused_tokens == before


async def test_a_closed_stream_frees_its_place(engine: TransformersEngine) -> None:
    request = GenerationRequest("r", "s", PROMPT, Sampling(4000, 1.0))
    streams = [engine.generate(request) for _ in range(4)]
    for stream in streams:
        await anext(stream)
    late = asyncio.create_task(generate(engine, n=5, session="late"))
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    assert len((await late)[0]) == 5
    assert engine.stats().running == 0


async def test_a_cancelled_task_frees_its_place(engine: TransformersEngine) -> None:
    tasks = [asyncio.create_task(generate(engine, n=4000, session=f"s{i}")) for i in range(6)]
    while engine.stats().running < 4:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len((await generate(engine, n=5))[0]) == 5
    assert engine.stats().running == engine.stats().waiting == 0


async def test_a_swap_changes_the_policy_and_waits_for_replies(
    engine: TransformersEngine, tiny_policy: Path, tmp_path: Path
) -> None:
    other = make_policy(tmp_path / "other", seed=1)
    old, _, _ = await generate(engine, n=60)
    stream = engine.generate(GenerationRequest("r", "t", PROMPT, Sampling(60, 0.7, (), 1)))
    first: Sampled = await anext(stream)
    swap = asyncio.create_task(engine.load(ref(other)))
    after = asyncio.create_task(generate(engine, n=60, session="u"))
    ids = list(first.ids)
    async for piece in stream:
        ids += piece.ids
    assert ids == old  # one policy from its first id to its last
    await swap
    assert engine.policy_version == 1
    await after
    new, logprobs, _ = await generate(engine, n=60)
    assert new != old
    fresh = TransformersEngine(max_concurrent=1, threads=1)
    await fresh.load(ref(other))
    scored = await fresh.score(np.concatenate([PROMPT, np.asarray(new, np.int32)]), len(PROMPT), 0.7)
    await fresh.close()
    assert np.abs(scored - np.asarray(logprobs)).max() < 1e-4
    await engine.load(ref(tiny_policy, 2))
    assert (await generate(engine, n=60))[0] == old


async def test_weights_with_a_hole_are_refused(engine: TransformersEngine, tiny_policy: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_policy, broken)
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"missing keys: model\.layers\.2\.mlp\.up_proj\.weight"):
        await engine.load(ref(broken))
    with pytest.raises(EngineError, match="no policy is loaded"):
        await generate(engine)
    await engine.load(ref(tiny_policy))
    assert len((await generate(engine))[0]) == 30


async def test_weights_that_are_not_numbers_are_refused(
    engine: TransformersEngine, tiny_policy: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_policy, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match="differ by nan"):
        await engine.load(ref(broken))


async def test_a_folder_that_changed_is_refused(engine: TransformersEngine, tiny_policy: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(tiny_policy, changed)
    recorded = ref(changed)
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(config | {"rope_theta": 5000.0}))
    with pytest.raises(EngineError, match="not the recorded"):
        await engine.load(recorded)


async def test_the_context_bounds_prompt_and_reply(engine: TransformersEngine) -> None:
    long = np.full(4090, 30, np.int32)
    ids, _, finish = await generate(engine, long, n=100)
    assert (len(ids), finish) == (6, "length")
    with pytest.raises(EngineError, match="leaves no room") as refused:
        await generate(engine, np.full(4096, 30, np.int32))
    assert refused.value.fault == "policy"


async def test_closing_ends_what_runs(tiny_policy: Path) -> None:
    engine = TransformersEngine(max_concurrent=1, threads=1)
    await engine.load(ref(tiny_policy))
    running = asyncio.create_task(generate(engine, n=4000))
    waiting = asyncio.create_task(generate(engine, n=4000, session="w"))
    while not (engine.stats().running and engine.stats().waiting):
        await asyncio.sleep(0)
    await engine.close()
    await engine.close()
    for task in (running, waiting):
        with pytest.raises(EngineError, match="closed"):
            await task
    with pytest.raises(EngineError, match="closed"):
        await generate(engine)


async def test_a_fault_while_decoding_reaches_everyone_and_passes(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("lego.engine.transformers.sample", lambda *_: 1 / 0)
        results = await asyncio.gather(*(generate(engine, session=s) for s in "ab"), return_exceptions=True)
    assert [type(result) for result in results] == [EngineError, EngineError]
    assert results[0].fault == "infra"  # type: ignore[union-attr]
    assert len((await generate(engine))[0]) == 30


async def test_whoever_asks_and_is_cancelled_takes_nothing_down(engine: TransformersEngine, tiny_policy: Path) -> None:
    """The engine reaches both while a long request keeps it busy, after they were cancelled."""
    busy = asyncio.create_task(generate(engine, n=200))
    while not engine.stats().running:
        await asyncio.sleep(0)
    asked = [asyncio.create_task(engine.score(PROMPT, 5)), asyncio.create_task(engine.load(ref(tiny_policy)))]
    await asyncio.sleep(0)
    for task in asked:
        task.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*asked, return_exceptions=True))
    assert len((await busy)[0]) == 200
    assert len((await generate(engine))[0]) == 30


async def test_closing_after_a_cancelled_swap_is_quiet(tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[object] = []
    monkeypatch.setattr("threading.excepthook", died.append)
    engine = TransformersEngine(max_concurrent=1, threads=1)
    await engine.load(ref(tiny_policy))
    running = asyncio.create_task(generate(engine, n=4000))
    while not engine.stats().running:
        await asyncio.sleep(0)
    swap = asyncio.create_task(engine.load(ref(tiny_policy)))
    while not engine._swaps:
        await asyncio.sleep(0)
    swap.cancel()
    await engine.close()
    await asyncio.gather(running, swap, return_exceptions=True)
    assert died == []
