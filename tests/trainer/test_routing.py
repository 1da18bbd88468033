"""Mixtures of experts: what the engine records is what the trainer replays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Ernie4_5_MoeConfig,
    GraniteMoeConfig,
    MiniMaxM2Config,
    Qwen3_5MoeTextConfig,
    Qwen3MoeConfig,
)

from lego.config.schema import GateSection, MoeSection
from lego.engine.base import GenerationRequest, PolicyRef, Sampling
from lego.engine.digest import folder_digest
from lego.engine.routing import UNKNOWN, routers, unfollowed
from lego.engine.transformers import TransformersEngine
from lego.errors import ConfigError, EngineError, TrainerError
from lego.rundb import routing
from lego.rundb.store import Store
from lego.trainer.batch import TrainSegment, context, coverage, pack
from lego.trainer.forest import GRAIN
from lego.trainer.gradient import Gradient, score
from lego.trainer.policy import Policy
from lego.trainer.routing import path_routing
from lego.trainer.step import Trainer
from lego.trajectory.arrays import Fate
from lego.trajectory.tree import CallRow, rebuild
from tests.trainer._sampled import sample, section

LAYERS, EXPERTS, CHOSEN = 2, 8, 2
SHAPE = {
    "vocab_size": 128, "hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "initializer_range": 0.3,
}  # fmt: skip
CONFIGS = {
    "qwen3-moe": Qwen3MoeConfig(**SHAPE, intermediate_size=64, norm_topk_prob=True),
    "qwen3.5-moe": Qwen3_5MoeTextConfig(
        **SHAPE, shared_expert_intermediate_size=32, layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param.replace(".", "-"))
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(CONFIGS[request.param]).save_pretrained(path)
    return path


async def _converse(folder: Path, dtype: str, trials: int = 3, turns: int = 2) -> list[TrainSegment]:
    """Conversations of some turns, all at once, each turn on top of what the engine kept of the one before."""
    engine = TransformersEngine(dtype=dtype, threads=1, routing=True)
    await engine.load(PolicyRef(0, str(folder), folder_digest(folder)))
    draws = np.random.default_rng(0)

    async def one(trial: int) -> TrainSegment:
        ids: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        rows: list[np.ndarray] = []
        for turn in range(turns):
            added = draws.integers(0, 128, 6 + trial).tolist()
            begin = max(0, len(ids) - 1)
            ids, mask, logprobs = ids + added, mask + [False] * len(added), logprobs + [0.0] * len(added)
            sampling = Sampling(max_tokens=12, seed=trial)
            request = GenerationRequest(f"{trial}/{turn}", f"{trial}", np.asarray(ids, np.int32), sampling)
            told: list[np.ndarray] = []
            async for piece in engine.generate(request):
                ids, mask = ids + list(piece.ids), mask + [True] * len(piece.ids)
                logprobs += list(piece.logprobs)
                told.append(piece.routing)
            whole = np.concatenate(told)
            assert whole.shape == (len(ids) - 1, LAYERS, CHOSEN)
            rows.append(whole[begin:])
        routed = np.concatenate([*rows, np.full((1, LAYERS, CHOSEN), UNKNOWN, np.int16)])
        return TrainSegment(
            trial + 1, np.asarray(ids, np.int32), np.asarray(mask), np.asarray(logprobs, np.float32),
            (1.0, -0.5)[trial % 2], routing=routed,
        )  # fmt: skip

    try:
        return list(await asyncio.gather(*(one(trial) for trial in range(trials))))
    finally:
        await engine.close()


def test_replayed_routing_brings_bfloat16_closer_and_covers_every_token(folder: Path) -> None:
    segments = asyncio.run(_converse(folder, "bfloat16"))
    reports = {}
    for replay in (True, False):
        wide = section(moe=MoeSection(replay=replay), gate=GateSection(9.0, 9.0, -1.0))
        reports[replay] = Trainer(folder, wide, dtype="bfloat16").prove(segments).metrics
        print(folder.name, replay, {k: reports[replay][k] for k in ("proof/correlation", "proof/mean_gap", "proof/k3")})
    assert coverage(segments) == 1.0
    assert reports[True]["moe/coverage"] == 1.0 and "moe/coverage" not in reports[False]
    assert reports[True]["proof/correlation"] > 0.99
    assert reports[True]["proof/mean_gap"] < reports[False]["proof/mean_gap"]


def test_in_float32_the_engine_chooses_as_the_model_does(folder: Path) -> None:
    segments = asyncio.run(_converse(folder, "float32"))
    report = Trainer(folder, section()).prove(segments)
    assert report.refused is None and report.metrics["moe/coverage"] == 1.0
    assert report.metrics["proof/mean_gap"] < 1e-4


def test_the_model_follows_what_it_is_told_and_learns_through_it(folder: Path) -> None:
    segments = asyncio.run(_converse(folder, "float32", trials=1))
    swapped = replace(segments[0], routing=np.where(segments[0].routing < 0, -1, (segments[0].routing + 1) % EXPERTS))
    policy = Policy(folder)
    scores = []
    for segment in (segments[0], swapped, replace(segments[0], routing=None)):
        (batch,) = pack([segment], 512, policy.layout(True))
        scores.append(policy.score(batch, 1.0).logp)
    torch.testing.assert_close(scores[0], scores[2], rtol=1e-4, atol=1e-4)
    assert float((scores[0] - scores[1]).detach().abs().max()) > 1e-3
    scores[1].sum().backward()
    gradients = {name: p.grad for name, p in policy.model.named_parameters()}
    assert all(float(grad.abs().max()) > 0 for name, grad in gradients.items() if "mlp.gate.weight" in name)


def test_equal_ids_with_other_routes_are_scored_each_by_its_own(folder: Path) -> None:
    (own,) = asyncio.run(_converse(folder, "float32", trials=1))
    other = replace(own, routing=np.where(own.routing < 0, -1, (own.routing + 1) % EXPERTS))
    policy = Policy(folder)
    together = score(policy, [own, other], 1.0, section())
    alone = [score(policy, [segment], 1.0, section())[0] for segment in (own, other)]
    np.testing.assert_allclose(together, alone, atol=1e-4)
    assert np.abs(alone[0] - alone[1]).max() > 1e-3


def test_forks_with_the_same_routes_cost_their_unique_tokens_and_pull_as_by_themselves(tmp_path: Path) -> None:
    """A conversation, and two that leave it late, recorded in one go as the calls of one trial are."""
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(CONFIGS["qwen3-moe"]).save_pretrained(tmp_path)
    (trunk,) = asyncio.run(_converse(tmp_path, "float32", trials=1, turns=8))
    draws = np.random.default_rng(3)
    segments = [trunk]
    for fork in (97, 120):
        ids = np.r_[trunk.ids[:fork], draws.integers(0, 128, 20)].astype(np.int32)
        routes = draws.permuted(np.tile(np.arange(EXPERTS, dtype=np.int16), (20, LAYERS, 1)), axis=-1)[..., :CHOSEN]
        owned = np.arange(len(ids)) >= fork + 8
        logprobs = np.where(owned, -1.0, 0.0).astype(np.float32)
        segments.append(
            TrainSegment(1, ids, owned, logprobs, 1.0, routing=np.concatenate([trunk.routing[:fork], routes]))
        )
    segments = [replace(segment, weight=1 / len(segments)) for segment in segments]
    (batch,) = pack(segments, 10_000)
    alone = sum(len(context(segment)) for segment in segments)
    unique = len(context(trunk)) + 2 * 19
    assert unique <= batch.ids.numel() <= unique + 2 * GRAIN < alone
    pulls = []
    for share, budget in ((True, 10_000), (False, 1)):
        policy = Policy(tmp_path)
        wide = section(share_prefixes=share, micro_batch_tokens=budget)
        Gradient(policy, wide, 1.0, longest=64).accumulate(segments)
        pulls.append({name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None})
    assert pulls[0].keys() == pulls[1].keys()
    for name, pull in pulls[1].items():
        torch.testing.assert_close(pulls[0][name], pull, rtol=0, atol=1e-5 * max(1.0, float(pull.abs().max())))


def test_the_balancing_loss_pulls_on_the_routers(folder: Path) -> None:
    segments = asyncio.run(_converse(folder, "float32"))
    balanced = section(moe=MoeSection(balance=0.1))
    trainer = Trainer(folder, balanced)
    report = trainer.step(segments)
    assert report.refused is None and report.metrics["moe/balance"] >= 0.99
    tilted = Policy(folder)
    with torch.no_grad():
        for name, parameter in tilted.model.named_parameters():
            if "mlp.gate.weight" in name:
                parameter.zero_()
    (batch, *_) = pack(segments, 10_000, tilted.layout(True))
    even = tilted.score(batch, 1.0, balance=True).balance
    assert even is not None and float(even.detach()) == pytest.approx(1.0)


def test_a_path_takes_each_call_s_own_rows(tmp_path: Path) -> None:
    """A root, its continuation, and a fork that leaves the root within its reply."""

    def row(seq: int, parent: int | None, shared: int, added: list[int], said: list[int]) -> CallRow:
        return CallRow(
            seq, parent, shared,
            np.asarray(added, np.int32), np.asarray(said, np.int32), np.zeros(len(said), np.float32),
            "stop", Fate.DELIVERED, "main", "policy", 0,
        )  # fmt: skip

    tree = rebuild([row(1, None, 0, [1, 2, 3], [4, 5]), row(2, 1, 5, [6], [7, 8]), row(3, 1, 4, [9], [10])])
    store = Store.open(tmp_path / "run.db")
    for seq, begin, end in ((1, 0, 4), (2, 4, 7), (3, 3, 5)):
        routing.put(store, 7, seq, begin, np.full((end - begin, 1, 1), seq, np.int16))
    recorded = routing.of_trial(store, 7)
    along = {leaf: path_routing(tree, tree[leaf], recorded, tree[leaf].length) for leaf in (2, 3)}
    assert along[2].ravel().tolist() == [1, 1, 1, 1, 2, 2, 2, UNKNOWN]
    assert along[3].ravel().tolist() == [1, 1, 1, 3, 3, UNKNOWN]
    assert path_routing(tree, tree[2], {}, 8) is None


def test_padding_is_no_token_to_balance(folder: Path) -> None:
    """A short segment beside a long one in rows, against the formula in float64 on what each says by itself."""
    segments = [replace(s, routing=None) for s in asyncio.run(_converse(folder, "float32", trials=2))]
    long = np.concatenate([segments[1].ids] * 4)
    segments[1] = TrainSegment(2, long, np.arange(len(long)) > 3, np.zeros(len(long), np.float32))
    policy = Policy(folder)
    logits: list[list[np.ndarray]] = [[] for _ in range(LAYERS)]
    hooks = [
        router.register_forward_hook(
            lambda _, __, output, layer=layer: logits[layer].append(output[0].double().numpy())
        )
        for layer, router in enumerate(routers(policy.model))
    ]
    with torch.no_grad():
        for segment in segments:
            policy.score(pack([segment], 512, "rows")[0], 1.0)
        for hook in hooks:
            hook.remove()
        (batch,) = pack(segments, 512, "rows")
        balance = policy.score(batch, 1.0, balance=True).balance
    assert batch.real is not None and not batch.real.all()
    wanted = []
    for layer in logits:
        rows = np.concatenate(layer)
        spread = np.exp(rows - rows.max(1, keepdims=True))
        spread /= spread.sum(1, keepdims=True)
        chosen = np.argsort(-rows, axis=1)[:, :CHOSEN]
        share = np.bincount(chosen.ravel(), minlength=EXPERTS) / chosen.size
        wanted.append(EXPERTS * (share * spread.mean(0)).sum())
    assert balance is not None and float(balance) == pytest.approx(np.mean(wanted), rel=1e-5)


def test_what_is_balanced_is_what_the_routers_chose(tmp_path: Path) -> None:
    """ERNIE 4.5 chooses by a bias that plays no part in what it weighs; here by that alone."""
    torch.manual_seed(1)
    shape = {name: value for name, value in SHAPE.items() if name not in ("num_experts", "num_experts_per_tok")}
    AutoModelForCausalLM.from_config(
        Ernie4_5_MoeConfig(
            **shape, intermediate_size=64, moe_num_experts=EXPERTS, moe_k=CHOSEN, moe_layer_start_index=0,
            moe_num_shared_experts=0,
        )
    ).save_pretrained(tmp_path)  # fmt: skip
    policy = Policy(tmp_path)
    assert policy.routers and not policy.routers.strange
    spreads: list[np.ndarray] = []
    for router in routers(policy.model):
        bias: torch.Tensor = router.moe_statics.e_score_correction_bias  # type: ignore[union-attr, assignment]
        with torch.no_grad():
            bias.zero_()
            bias[..., :CHOSEN] = 9.0
        router.register_forward_hook(lambda _, __, output: spreads.append(output[0].double().softmax(-1).numpy()))
    ids = np.arange(30, dtype=np.int32)
    segment = TrainSegment(1, ids, ids > 3, np.zeros(len(ids), np.float32))
    with torch.no_grad():
        balance = policy.score(pack([segment], 512, policy.layout(True))[0], 1.0, balance=True).balance
    assert len(spreads) == LAYERS and balance is not None
    wanted = np.mean([EXPERTS * spread.mean(0)[:CHOSEN].sum() / CHOSEN for spread in spreads])
    assert float(balance) == pytest.approx(wanted, rel=1e-5)


STRANGE = {
    "MiniMaxM2TopKRouter": MiniMaxM2Config(**SHAPE, intermediate_size=32, num_local_experts=EXPERTS),
    "GraniteMoeTopKRouter": GraniteMoeConfig(**SHAPE, intermediate_size=32, num_local_experts=EXPERTS),
}


@pytest.mark.parametrize("name", STRANGE)
def test_routers_of_another_rule_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """A sigmoid's weights (MiniMax-M2), another order of what is returned (Granite): neither is replayed or balanced as
    if it were softmax, and without that both are trained as any model is."""
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(STRANGE[name]).save_pretrained(tmp_path)
    wide = section(gate=GateSection(9.0, 9.0, -1.0))
    trainer = Trainer(tmp_path, wide)
    assert trainer.policy.routers.strange == name
    segments = sample(tmp_path, trials=2)
    told = [replace(s, routing=np.zeros((len(s.ids), LAYERS, CHOSEN), np.int16)) for s in segments]
    with pytest.raises(TrainerError, match=f"the choices of {name} cannot be replayed"):
        trainer.step(told)
    assert Trainer(tmp_path, replace(wide, moe=MoeSection(replay=False))).step(told).refused is None
    with pytest.raises(ConfigError, match=f"train.moe.balance: {name}"):
        Trainer(tmp_path, replace(wide, moe=MoeSection(balance=0.1)))
    engine = TransformersEngine(threads=1, routing=True)
    with pytest.raises(EngineError, match=f"engine.routing: the choices of {name} cannot be replayed"):
        asyncio.run(engine.load(PolicyRef(0, str(tmp_path), folder_digest(tmp_path))))
    asyncio.run(engine.close())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_routers_of_softmax_are_known_as_such(folder: Path, dtype: torch.dtype) -> None:
    """Also where all their logits are next to nothing, as in a fresh model: what they are tried on is not."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        for router in routers(model):
            router.weight.mul_(1e-2)
    assert unfollowed(model, torch.device("cpu")) == ""
    strange = routers(model)[0]
    strange.register_forward_hook(lambda _, __, output: (output[0], output[1] * 1.5, output[2]))
    assert unfollowed(model, torch.device("cpu")) == type(strange).__name__
