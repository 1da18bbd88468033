"""The proof of a swap, held against an engine that is known to be right: no vLLM needed."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lego.engine.base import GenerationRequest, IntArray, PolicyRef, Sampling
from lego.engine.digest import folder_digest
from lego.engine.policy import load_model
from lego.engine.transformers import TransformersEngine
from lego.engine.vllm_probe import Reply, prove
from lego.errors import EngineError
from tests._tiny import make_policy

CONTEXT = 4096


def replies(engine: TransformersEngine) -> Reply:
    numbers = itertools.count()

    async def reply(prompt: IntArray, tokens: int, temperature: float) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        logprobs: list[float] = []
        name = str(next(numbers))
        async for piece in engine.generate(
            GenerationRequest(name, name, prompt, Sampling(tokens, temperature, seed=1))
        ):
            ids += piece.ids
            logprobs += piece.logprobs
        engine.end_session(name)
        return ids, logprobs

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

    async def reply(prompt: IntArray, tokens: int, temperature: float) -> tuple[list[int], list[float]]:
        asked.append(len(prompt) + tokens)
        return await replies(engine)(prompt, tokens, temperature)

    await prove(model_of(tiny_policy), reply, 64, None)
    assert max(asked) == 64


async def test_another_policys_replies_are_refused(engine: TransformersEngine, tmp_path: Path) -> None:
    other = make_policy(tmp_path / "other", seed=1)
    with pytest.raises(EngineError, match=r"log-probs differ by \d"):
        await prove(model_of(other), replies(engine), CONTEXT, None)


async def test_what_is_not_a_number_is_refused(engine: TransformersEngine, tiny_policy: Path) -> None:
    async def reply(prompt: IntArray, tokens: int, temperature: float) -> tuple[list[int], list[float]]:
        ids, logprobs = await replies(engine)(prompt, tokens, temperature)
        return ids, [float("nan"), *logprobs[1:]]

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
