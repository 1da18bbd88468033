"""vLLM itself, run for real: `make test-vllm` (its CPU build will do). Skipped where it is not installed."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, Qwen3_5MoeTextConfig, Qwen3MoeConfig

from lego.config.load import load
from lego.config.schema import EngineSection, LoraSection, TrainSection
from lego.engine.base import Engine, GenerationRequest, IntArray, PolicyRef, Sampled, Sampling
from lego.engine.digest import folder_digest
from lego.engine.open import open_engine
from lego.engine.transformers import TransformersEngine
from lego.errors import ConfigError, EngineError
from lego.trainer.batch import TrainSegment, coverage
from lego.trainer.gradient import score
from lego.trainer.launch import GangTrainer, Setting
from lego.trainer.policy import Policy
from lego.trainer.step import Trainer
from lego.trainer.tiny import make_tiny
from tests._tiny import make_policy
from tests.conftest import missing
from tests.trainer._sampled import sample
from tests.trainer._sampled import section as tiny_section
from tests.trainer.test_routing import CHOSEN, EXPERTS, LAYERS, SHAPE

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = np.arange(20, 60, dtype=np.int32)
CONTEXT = 1024
BOUND = 1e-4


def ref(path: Path, version: int = 0) -> PolicyRef:
    return PolicyRef(version, str(path), folder_digest(path))


def opened(device: str = "auto", tensor_parallel: int = 1) -> Engine:
    section = EngineSection(
        kind="vllm", device=device, threads=1, max_concurrent=16, cache="256m", tensor_parallel=tensor_parallel
    )
    return open_engine(section, CONTEXT)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two policies of one shape."""
    folder = tmp_path_factory.mktemp("policies")
    return [make_policy(folder / str(seed), seed) for seed in range(2)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(policies: list[Path]) -> AsyncIterator[Engine]:
    """One vLLM for the tests that leave it whole; starting it takes longer than all of them."""
    if find_spec("vllm") is None:
        missing("vllm", "not installed in this environment (tools/vllm.sh makes one)")
    engine = opened()
    await engine.load(ref(policies[0]))
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(warm: Engine, policies: list[Path]) -> Engine:
    """vLLM with the first policy and an empty prefix cache."""
    await warm.load(ref(policies[0]))
    return warm


@pytest_asyncio.fixture(loop_scope="module")
async def reference(policies: list[Path]) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(max_concurrent=16, threads=1)
    await engine.load(ref(policies[0]))
    yield engine
    await engine.close()


async def generate(
    engine: Engine,
    prompt: IntArray = PROMPT,
    n: int = 30,
    temperature: float = 1.0,
    stop: tuple[int, ...] = (),
    seed: int | None = 1,
) -> tuple[list[int], list[float], str | None]:
    ids: list[int] = []
    logprobs: list[float] = []
    finishes = []
    async for piece in engine.generate(GenerationRequest("r", "s", prompt, Sampling(n, temperature, stop, seed))):
        assert len(piece.ids) == len(piece.logprobs) > 0
        ids += piece.ids
        logprobs += piece.logprobs
        finishes.append(piece.finish)
    assert all(finish is None for finish in finishes[:-1])
    return ids, logprobs, finishes[-1]


def joined(prompt: IntArray, ids: list[int]) -> IntArray:
    return np.concatenate([prompt, np.asarray(ids, np.int32)])


@pytest.mark.parametrize("temperature", [1.0, 0.8])
async def test_log_probs_are_the_transformers_engines_and_the_trainers(
    engine: Engine, reference: TransformersEngine, policies: list[Path], temperature: float
) -> None:
    prompts = [np.arange(20, 20 + n, dtype=np.int32) for n in (5, 40, 200, 17, 150, 333)]
    replies = await asyncio.gather(*(generate(engine, p, 50, temperature, seed=i) for i, p in enumerate(prompts)))
    trainer = Policy(policies[0], device="cpu")
    for prompt, (ids, logprobs, finish) in zip(prompts, replies, strict=True):
        assert finish == "length" and len(ids) == 50
        whole, start = joined(prompt, ids), len(prompt)
        segment = TrainSegment(1, whole, np.arange(len(whole)) >= start, np.zeros(len(whole), np.float32))
        (trained,) = score(trainer, [segment], temperature, TrainSection())
        peers = {
            "the transformers engine": await reference.score(whole, start, temperature),
            "the trainer's forward pass": trained[start:],
            "its own teacher forcing": await engine.score(whole, start, temperature),
        }
        for name, peer in peers.items():
            assert peer.dtype == np.float32
            assert np.abs(peer - np.asarray(logprobs)).max() < BOUND, name


async def test_greedy_ids_are_the_transformers_engines(engine: Engine, reference: TransformersEngine) -> None:
    ids, logprobs, _ = await generate(engine, temperature=0.0)
    theirs, their_logprobs, _ = await generate(reference, temperature=0.0)
    assert ids == theirs
    np.testing.assert_allclose(logprobs, their_logprobs, atol=BOUND)


async def test_a_seed_gives_the_same_reply_whatever_runs_beside_it(engine: Engine) -> None:
    alone, _, _ = await generate(engine, seed=7)
    beside = [generate(engine, PROMPT[: 10 + i], 40, seed=i) for i in range(3)]
    together, *_ = await asyncio.gather(generate(engine, seed=7), *beside)
    assert together[0] == alone
    assert (await generate(engine, seed=8))[0] != alone


async def test_the_stop_id_ends_and_belongs_to_the_reply(engine: Engine) -> None:
    free, _, _ = await generate(engine)
    stop = free[12]
    ids, _, finish = await generate(engine, stop=(stop,))
    assert finish == "stop"
    assert ids == free[: free.index(stop) + 1]


async def test_nothing_but_the_stop_ids_ends_a_reply(engine: Engine, policies: list[Path]) -> None:
    """A random policy samples the folder's own eos id soon enough."""
    eos = 2
    replies = await asyncio.gather(*(generate(engine, n=400, seed=i) for i in range(4)))
    assert any(eos in ids[:-1] for ids, _, _ in replies)
    assert {(len(ids), finish) for ids, _, finish in replies} == {(400, "length")}


async def test_the_context_bounds_prompt_and_reply(engine: Engine) -> None:
    ids, _, finish = await generate(engine, np.full(CONTEXT - 6, 30, np.int32), n=100)
    assert (len(ids), finish) == (6, "length")
    with pytest.raises(EngineError, match="leaves no room") as refused:
        await generate(engine, np.full(CONTEXT, 30, np.int32))
    assert refused.value.fault == "policy"


@pytest.mark.parametrize("temperature", [0.001, 2.5])
async def test_a_temperature_that_vllm_would_change_is_refused(engine: Engine, temperature: float) -> None:
    with pytest.raises(EngineError, match="cannot sample at temperature"):
        await generate(engine, temperature=temperature)
    assert engine.stats().running == 0


async def test_a_swap_changes_the_policy_and_waits_for_replies(
    engine: Engine, reference: TransformersEngine, policies: list[Path]
) -> None:
    old, _, _ = await generate(engine, n=60)
    stream = engine.generate(GenerationRequest("r", "t", PROMPT, Sampling(60, seed=1)))
    first: Sampled = await anext(stream)
    swap = asyncio.create_task(engine.load(ref(policies[1], 1)))
    ids = list(first.ids)
    async for piece in stream:
        ids += piece.ids
    assert ids == old  # one policy from its first id to its last
    await swap
    assert engine.policy_version == 1
    new, logprobs, _ = await generate(engine, n=60)
    assert new != old
    await reference.load(ref(policies[1]))
    scored = await reference.score(joined(PROMPT, new), len(PROMPT))
    assert np.abs(scored - np.asarray(logprobs)).max() < BOUND
    assert 0 < engine.stats().extra["probe_gap"] < BOUND


async def test_a_policy_divided_among_two_workers_samples_the_same(
    warm: Engine, reference: TransformersEngine, policies: list[Path]
) -> None:
    engine = opened(tensor_parallel=2)
    try:
        for version, policy in enumerate(policies):
            await engine.load(ref(policy, version))
            assert 0 < engine.stats().extra["probe_gap"] < BOUND
            await reference.load(ref(policy, version))
            replies = await asyncio.gather(*(generate(engine, PROMPT[: 10 + i], 60, 0.8, seed=i) for i in range(4)))
            for i, (ids, logprobs, _) in enumerate(replies):
                whole = joined(PROMPT[: 10 + i], ids)
                scored = await reference.score(whole, 10 + i, 0.8)
                assert np.abs(scored - np.asarray(logprobs)).max() < BOUND
    finally:
        await engine.close()


async def test_a_policy_that_cannot_be_divided_so_is_refused_in_one_line(warm: Engine, policies: list[Path]) -> None:
    with pytest.raises(EngineError, match=r"attention heads \(4\) must be divisible by .* \(3\)") as refused:
        await opened(tensor_parallel=3).load(ref(policies[0]))
    assert "\n" not in refused.value.message


async def test_a_merged_adapter_is_swapped_in(engine: Engine, policies: list[Path], tmp_path: Path) -> None:
    trainer = Trainer(policies[0], tiny_section(lora=LoraSection(rank=4)))
    assert trainer.step(sample(policies[0])).refused is None
    trainer.save(tmp_path / "merged")
    await engine.load(ref(tmp_path / "merged", 1))
    ids, logprobs, _ = await generate(engine)
    peer = TransformersEngine(threads=1)
    gaps = []
    for policy in (tmp_path / "merged", policies[0]):
        await peer.load(ref(policy))
        gaps.append(np.abs(await peer.score(joined(PROMPT, ids), len(PROMPT)) - np.asarray(logprobs)).max())
    await peer.close()
    assert gaps[0] < BOUND < gaps[1]


async def test_sixteen_sessions_share_a_prefix_and_say_what_they_would_alone(engine: Engine) -> None:
    shared = np.random.default_rng(0).integers(20, 300, 400).astype(np.int32)
    firsts = [joined(shared, [30 + i] * 20) for i in range(16)]

    async def conversation(i: int) -> list[tuple[list[int], list[float], str | None]]:
        first = await generate(engine, firsts[i], 40, 0.8, seed=i)
        second = await generate(engine, joined(firsts[i], [*first[0], 40, 41, 42]), 40, 0.8, seed=100 + i)
        return [first, second]

    await generate(engine, shared, 1)
    before = engine.stats().reused_tokens
    together = await asyncio.gather(*(conversation(i) for i in range(16)))
    # Whole blocks of the shared prefix, and in the second turn those of the first.
    assert engine.stats().reused_tokens - before >= 16 * 2 * 384
    for i, turns in enumerate(together):
        prompt = firsts[i]
        for turn, (ids, logprobs, _) in enumerate(turns):
            assert await engine._llm.reset_prefix_cache()  # type: ignore[attr-defined]
            before = engine.stats().reused_tokens
            alone, their_logprobs, _ = await generate(engine, prompt, 40, 0.8, seed=100 * turn + i)
            assert engine.stats().reused_tokens == before
            assert ids == alone
            np.testing.assert_allclose(logprobs, their_logprobs, atol=BOUND)
            prompt = joined(prompt, [*ids, 40, 41, 42])


async def test_a_closed_stream_frees_its_place(engine: Engine) -> None:
    request = GenerationRequest("r", "s", PROMPT, Sampling(900))
    streams = [engine.generate(request) for _ in range(16)]
    for stream in streams:
        await anext(stream)
    late = asyncio.create_task(generate(engine, n=5))
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    assert len((await late)[0]) == 5
    assert engine.stats().running == engine.stats().waiting == 0
    # vLLM empties its cache only where no request holds a block of it.
    assert await engine._llm.reset_prefix_cache()  # type: ignore[attr-defined]


async def test_a_cancelled_task_frees_its_place(engine: Engine) -> None:
    tasks = [asyncio.create_task(generate(engine, n=900)) for _ in range(20)]
    while engine.stats().waiting < 4:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len((await generate(engine, n=5))[0]) == 5
    assert engine.stats().running == engine.stats().waiting == 0
    assert await engine._llm.reset_prefix_cache()  # type: ignore[attr-defined]


async def test_a_wrong_swap_is_refused_and_nothing_is_sampled_from_it(
    engine: Engine, policies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(policy: PolicyRef) -> None:
        await rightly(ref(policies[0]))

    rightly = engine._reload  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_reload", wrong)
        with pytest.raises(EngineError, match=r"does not sample from the policy it was given: log-probs differ by \d"):
            await engine.load(ref(policies[1], 1))
    with pytest.raises(EngineError, match="no policy is loaded"):
        await generate(engine)
    with pytest.raises(EngineError, match="no policy is loaded"):
        await engine.score(PROMPT, 5)
    # A load that is right starts vLLM anew, here with a policy of another shape.
    make_tiny(tmp_path, 3, ["other text"], vocabulary=300, context=512)
    await engine.load(ref(tmp_path, 5))
    with pytest.raises(EngineError, match="a context of 512"):
        await generate(engine, np.full(600, 30, np.int32))
    assert len((await generate(engine))[0]) == 30


async def test_closing_ends_what_runs(engine: Engine) -> None:
    """The last test: the engine is gone after it. (It begins with a policy of another shape than the one loaded.)"""
    running = [asyncio.create_task(generate(engine, n=900)) for _ in range(20)]
    while engine.stats().waiting < 4:
        await asyncio.sleep(0)
    await engine.close()
    await engine.close()
    for end in await asyncio.gather(*running, return_exceptions=True):
        assert isinstance(end, EngineError) and "closed" in str(end)
    with pytest.raises(EngineError, match="closed"):
        await generate(engine)
    with pytest.raises(EngineError, match="closed"):
        await engine.load(PolicyRef(0, "x", ""))


async def test_a_device_that_this_build_lacks_is_refused(warm: Engine, policies: list[Path]) -> None:
    other = opened("cpu" if torch.cuda.is_available() else "cuda")
    with pytest.raises(ConfigError, match="but this vLLM runs on"):
        await other.load(ref(policies[0]))


async def converse(engine: Engine, trial: int) -> TrainSegment:
    """A conversation of two turns with a mixture of experts, the second on top of cached keys and values."""
    draws = np.random.default_rng(trial)
    ids, mask = np.zeros(0, np.int32), np.zeros(0, bool)
    logprobs, routing = np.zeros(0, np.float32), np.full((1, LAYERS, CHOSEN), -1, np.int16)
    for turn in range(2):
        prompt = np.concatenate([ids, draws.integers(0, 128, 40 + trial).astype(np.int32)])
        request = GenerationRequest(f"{trial}/{turn}", f"{trial}", prompt, Sampling(20, seed=trial))
        pieces = [piece async for piece in engine.generate(request)]
        assert all(piece.routing is None for piece in pieces[:-1])
        told = pieces[-1].routing
        ids = np.concatenate([prompt, *(np.asarray(piece.ids, np.int32) for piece in pieces)])
        assert told is not None and told.shape == (len(ids) - 1, LAYERS, CHOSEN)
        # What the first turn told is cached now.
        routing = np.concatenate([routing[:-1], told[len(routing) - 1 :], routing[-1:]])
        new = len(ids) - len(mask)
        said = [p for piece in pieces for p in piece.logprobs]
        mask = np.concatenate([mask, np.arange(new) >= new - len(said)])
        logprobs = np.concatenate([logprobs, np.zeros(new - len(said), np.float32), np.float32(said)])
    return TrainSegment(trial + 1, ids, mask, logprobs, (1.0, -0.5)[trial % 2], routing=routing)


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_experts_it_chose_are_replayed(warm: Engine, tmp_path: Path, workers: int) -> None:
    """Three conversations at once, after a swap."""
    shape = {**SHAPE, "head_dim": 32}  # its CPU build has no attention of less
    config = Qwen3MoeConfig(**shape, intermediate_size=64, norm_topk_prob=True)
    section = EngineSection(kind="vllm", threads=1, cache="64m", routing=True, tensor_parallel=workers)
    engine = open_engine(section, 512)
    try:
        for version in range(2):
            torch.manual_seed(version)
            folder = tmp_path / str(version)
            AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            await engine.load(ref(folder, version))
        segments = list(await asyncio.gather(*(converse(engine, trial) for trial in range(3))))
    finally:
        await engine.close()
    assert coverage(segments) == 1.0
    assert all((segment.routing[:-1] >= 0).all() for segment in segments)
    report = Trainer(folder, TrainSection()).prove(segments)
    assert report.refused is None and report.metrics["moe/coverage"] == 1.0
    assert report.metrics["proof/mean_gap"] < BOUND
    # As far off as other experts would be:
    others = [replace(one, routing=np.where(one.routing < 0, -1, (one.routing + 1) % EXPERTS)) for one in segments]
    assert Trainer(folder, TrainSection()).prove(others).metrics["proof/mean_gap"] > 10 * BOUND


PICTURES = """
class Names(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name

class Picture(metaclass=Names):
    pass

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Picture

__version__ = "0"
"""


@pytest.fixture
def no_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's Qwen3.5 reads pictures as well, by a package that tools/vllm.sh leaves out; names are enough to import."""
    if find_spec("torchvision"):
        return
    for module in ("", "io", "transforms/", "transforms/functional", "transforms/v2/", "transforms/v2/functional"):
        file = (
            tmp_path / "names" / "torchvision" / (f"{module}.py" if module[-1:].isalpha() else f"{module}__init__.py")
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PICTURES)
    monkeypatch.syspath_prepend(tmp_path / "names")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "names"), prepend=os.pathsep)


@pytest.mark.usefixtures("no_pictures")
async def test_the_config_for_35b_samples_trains_and_swaps_on_a_tiny_policy_of_its_class(
    warm: Engine, tmp_path: Path
) -> None:
    """configs/qwen3.5-35b.yaml as it stands, but for the sizes, two workers and two processes in the place of eight
    GPUs, and offloading. Heads are as wide as the real ones: the CPU build's kernels have no others."""
    torch.manual_seed(1)
    shape = {**SHAPE, "head_dim": 128, "initializer_range": 0.1}
    tiny = Qwen3_5MoeTextConfig(
        **shape, shared_expert_intermediate_size=32, layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128,
    )  # fmt: skip
    policy = tmp_path / "0"
    AutoModelForCausalLM.from_config(tiny).save_pretrained(policy)
    sizes = ["engine.device=auto", "engine.tensor_parallel=2", "engine.cache=256m", "engine.max_concurrent=8"]
    sizes += ["engine.threads=1", "train.deepspeed.processes=2", "train.deepspeed.offload=none"]
    config = load(Path(__file__).parents[2] / "configs" / "qwen3.5-35b.yaml", sizes).config
    engine = open_engine(config.engine, 512)
    try:
        await engine.load(ref(policy))
        segments = list(await asyncio.gather(*(converse(engine, trial) for trial in range(4))))
        assert coverage(segments) == 1.0
        longest = config.rollout.max_total_tokens
        setting = Setting(str(policy), config.rollout.temperature, 0, config.engine.dtype, 1, longest, str(policy))
        trainer = GangTrainer(setting, config.train, tmp_path / "job")
        report = await asyncio.to_thread(trainer.step, segments)
        assert report.refused is None, report
        assert report.metrics["moe/coverage"] == 1.0
        assert report.metrics["step/grad_norm"] > 0
        trainer.save(tmp_path / "1")
        await engine.load(ref(tmp_path / "1", 1))
        assert engine.policy_version == 1
        assert len((await generate(engine))[0]) == 30
    finally:
        await engine.close()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_killed_process_takes_vllm_along(warm: Engine, policies: list[Path], workers: int) -> None:
    """`warm` only says that vLLM is here."""
    program = (
        "import asyncio, psutil, sys\n"
        "from lego.config.schema import EngineSection\n"
        "from lego.engine.base import PolicyRef\n"
        "from lego.engine.open import open_engine\n"
        "async def main():\n"
        "    section = EngineSection(kind='vllm', threads=1, cache='256m', tensor_parallel=int(sys.argv[2]))\n"
        "    engine = open_engine(section, 1024)\n"
        "    await engine.load(PolicyRef(0, sys.argv[1], ''))\n"
        "    print('pids', *(child.pid for child in psutil.Process().children(recursive=True)), flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    script = policies[0].parent / "serve.py"
    script.write_text(program)
    child = await asyncio.create_subprocess_exec(
        sys.executable, script, policies[0], str(workers), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    async for line in child.stdout:
        if line.startswith(b"pids"):
            break
    handles = [os.pidfd_open(int(pid)) for pid in line.split()[1:]]
    assert len(handles) >= workers
    child.kill()
    await child.wait()
    for handle in handles:
        assert select.select([handle], [], [], 60)[0]
        os.close(handle)
