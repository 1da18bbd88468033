"""The proof of a swap, held against an engine that is known to be right: no vLLM needed."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lego.engine.base import GenerationRequest, IntArray, PolicyRef, Sampling
from lego.engine.digest import folder_digest
from lego.engine.policy import load_model
from lego.engine.routing import UNKNOWN, RoutingArray, routers, sent_to
from lego.engine.transformers import TransformersEngine
from lego.engine.vllm_probe import Reply, Said, prove
from lego.errors import EngineError
from tests._tiny import make_policy
from tests.trainer.test_routing import CONFIGS, EXPERTS

CONTEXT = 4096


def replies(engine: TransformersEngine) -> Reply:
    numbers = itertools.count()

    async def reply(prompt: IntArray, tokens: int, temperature: float) -> Said:
        ids: list[int] = []
        logprobs: list[float] = []
        rows: list[RoutingArray] = []
        name = str(next(numbers))
        async for piece in engine.generate(
            GenerationRequest(name, name, prompt, Sampling(tokens, temperature, seed=1))
        ):
            ids += piece.ids
            logprobs += piece.logprobs
            rows += [] if piece.routing is None else [piece.routing]
        engine.end_session(name)
        return Said(ids, logprobs, np.concatenate(rows) if rows else None)

    return reply


def model_of(path: Path) -> torch.nn.Module:
    return load_model(PolicyRef(0, str(path), folder_digest(path)), torch.float32, torch.device("cpu"))


async def test_an_engine_that_serves_the_policy_is_proven(engine: TransformersEngine, tiny_policy: Path) -> None:
    proof = await prove(model_of(tiny_policy), replies(engine), CONTEXT, None)
    assert proof.gap < 1e-5
    assert len(proof.ids) == len(proof.engine) == 48
    again = await prove(model_of(tiny_policy), replies(engine), CONTEXT, proof)
    assert again.ids == proof.ids  # the same weights under another name are no stale ones


async def test_a_short_context_is_kept_to(engine: TransformersEngine, tiny_policy: Path) -> None:
    asked: list[int] = []

    async def reply(prompt: IntArray, tokens: int, temperature: float) -> Said:
        asked.append(len(prompt) + tokens)
        return await replies(engine)(prompt, tokens, temperature)

    await prove(model_of(tiny_policy), reply, 64, None)
    assert max(asked) == 64


async def test_another_policys_replies_are_refused(engine: TransformersEngine, tmp_path: Path) -> None:
    other = make_policy(tmp_path / "other", seed=1)
    with pytest.raises(EngineError, match=r"log-probs differ by \d"):
        await prove(model_of(other), replies(engine), CONTEXT, None)


async def test_what_is_not_a_number_is_refused(engine: TransformersEngine, tiny_policy: Path) -> None:
    async def reply(prompt: IntArray, tokens: int, temperature: float) -> Said:
        said = await replies(engine)(prompt, tokens, temperature)
        return replace(said, logprobs=[float("nan"), *said.logprobs[1:]])

    with pytest.raises(EngineError, match="differ by nan"):
        await prove(model_of(tiny_policy), reply, CONTEXT, None)


async def test_a_step_too_small_for_the_bound_must_still_arrive(
    engine: TransformersEngine, tiny_policy: Path, tmp_path: Path
) -> None:
    stepped = tmp_path / "stepped"
    shutil.copytree(tiny_policy, stepped)
    tensors = load_file(stepped / "model.safetensors")
    rng = np.random.default_rng(0)
    for name, tensor in tensors.items():
        if "layers" in name:
            tensor += torch.from_numpy(rng.choice([-1e-7, 1e-7], tensor.shape).astype(np.float32))
    save_file(tensors, stepped / "model.safetensors", metadata={"format": "pt"})
    before = await prove(model_of(tiny_policy), replies(engine), CONTEXT, None)
    assert (await prove(model_of(stepped), replies(engine), CONTEXT, None)).gap < 1e-4
    with pytest.raises(EngineError, match="still samples from the policy before"):
        await prove(model_of(stepped), replies(engine), CONTEXT, before)
    await engine.load(PolicyRef(1, str(stepped), ""))
    await prove(model_of(stepped), replies(engine), CONTEXT, before)


@pytest.fixture(scope="module", params=CONFIGS)
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture")
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(CONFIGS[request.param]).save_pretrained(path)
    return path


@pytest_asyncio.fixture
async def recorder(mixture: Path) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(threads=1, routing=True)
    await engine.load(PolicyRef(0, str(mixture), ""))
    yield engine
    await engine.close()


def cached(reply: Reply) -> Reply:
    """As vLLM tells it: experts of what its prefix cache holds are not known again."""
    turns = itertools.count()

    async def told(prompt: IntArray, tokens: int, temperature: float) -> Said:
        said = await reply(prompt, tokens, temperature)
        assert said.routing is not None
        rows = said.routing.copy()
        rows[: (0, 32, len(prompt) - 8)[next(turns)]] = UNKNOWN
        return replace(said, routing=rows)

    return told


async def test_recorded_experts_are_followed_and_are_the_policys(mixture: Path, recorder: TransformersEngine) -> None:
    proof = await prove(model_of(mixture), cached(replies(recorder)), 512, None)
    assert proof.gap < 1e-4
    assert proof.agreed > 0.99


async def test_an_engine_whose_routers_choose_otherwise_is_refused(mixture: Path, recorder: TransformersEngine) -> None:
    """Its log-probs are right for the experts that it says: those are followed, in the cached prefix, too."""

    def next_door(router: torch.nn.Module, inputs: object, output: tuple[torch.Tensor, ...]) -> object:
        return sent_to((output[2] + 1) % EXPERTS, router, output)

    for router in routers(recorder._model):
        router.register_forward_hook(next_door, prepend=True)
    with pytest.raises(EngineError, match="does not choose the policy's experts"):
        await prove(model_of(mixture), cached(replies(recorder)), 512, None)


async def test_wrongly_told_experts_are_refused(mixture: Path, recorder: TransformersEngine) -> None:
    async def reply(prompt: IntArray, tokens: int, temperature: float) -> Said:
        said = await replies(recorder)(prompt, tokens, temperature)
        assert said.routing is not None
        return replace(said, routing=(said.routing + 1) % EXPERTS)

    with pytest.raises(EngineError, match=r"log-probs differ by \d"):
        await prove(model_of(mixture), reply, 512, None)
