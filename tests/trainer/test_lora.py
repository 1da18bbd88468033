"""Adapters: what they are equal to, what moves, what is written, and what is held against them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lego.config.schema import (
    CorrectionSection,
    GateSection,
    LoraSection,
    ObjectiveSection,
    OptimizerSection,
    SftSection,
)
from lego.engine.adapter import base_of, read_model
from lego.engine.base import PolicyRef
from lego.engine.digest import folder_digest
from lego.engine.policy import load_model
from lego.errors import ConfigError, EngineError, TrainerError
from lego.rundb import catalogue
from lego.rundb.store import Store
from lego.trainer.gradient import Gradient
from lego.trainer.lora import merged, new_optimizer
from lego.trainer.retention import removable
from lego.trainer.sft import run_sft
from lego.trainer.step import Trainer
from tests.trainer._sampled import sample, section, weights
from tests.trainer._teaching import teach_until_killed
from tests.trainer.test_sharing import groups, grown

LORA = LoraSection(rank=4, alpha=8.0)
WIDE = GateSection(9.0, 9.0, -1.0)


def lora(**changes):
    return section(lora=replace(LORA, **changes), gate=WIDE)


@pytest.fixture(scope="module")
def segments(tiny_policy):
    return sample(tiny_policy)


@pytest.fixture(scope="module")
def stepped(tiny_policy, segments):
    """A trainer whose adapter adds something."""
    trainer = Trainer(tiny_policy, lora(), seed=3)
    for _ in range(3):
        assert trainer.step(segments).refused is None
    return trainer


def owned(rows, segments):
    return np.concatenate([row[s.mask] for row, s in zip(rows, segments, strict=True)])


def test_a_new_adapter_adds_exactly_nothing(tiny_policy, segments):
    adapted, plain = (Trainer(tiny_policy, made).score(segments) for made in (lora(), section()))
    assert all(np.array_equal(a, b) for a, b in zip(adapted, plain, strict=True))


def test_only_the_adapter_moves(tiny_policy, segments):
    trainer = Trainer(tiny_policy, lora())
    before = weights(trainer)
    trainer.step(segments)  # b moves: a has no gradient while b is zero
    trainer.step(segments)
    moved = {name for name, value in weights(trainer).items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if ".lora_" in name} != set()
    assert all(p.grad is None for name, p in trainer.policy.model.named_parameters() if ".lora_" not in name)


@pytest.mark.parametrize("export", ["merged", "adapter"])
def test_what_is_written_scores_as_what_was_trained(stepped, segments, tmp_path, export):
    """By the trainer again, by transformers alone, by peft on the base, and by the engine's loader."""
    stepped.section.lora.export = export
    stepped.save(tmp_path / "1", optimizer=False)
    want = owned(stepped.score(segments), segments)
    base = Trainer(stepped.folder, section()).score(segments)
    assert np.abs(want - owned(base, segments)).max() > 1e-3
    for how in (section(), lora()):
        np.testing.assert_allclose(owned(Trainer(tmp_path / "1", how).score(segments), segments), want, atol=1e-5)

    from peft import PeftModel

    models = [PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(stepped.folder), tmp_path / "1/adapter")]
    models.append(load_model(PolicyRef(1, str(tmp_path / "1"), folder_digest(tmp_path / "1")), torch.float32,
                             torch.device("cpu")))  # fmt: skip
    if export == "merged":
        models.append(AutoModelForCausalLM.from_pretrained(tmp_path / "1", dtype=torch.float32))
        assert set(load_file(tmp_path / "1/model.safetensors")) == set(load_file(stepped.folder / "model.safetensors"))
    else:
        assert not list((tmp_path / "1").glob("*.safetensors"))
    for model in models:
        rows = []
        for segment in segments:
            ids = torch.from_numpy(segment.ids).long()[None]
            with torch.no_grad():
                spread = torch.log_softmax(model.eval()(input_ids=ids).logits[0, :-1], -1)
            rows.append(np.r_[0, spread.gather(1, ids[0, 1:, None]).squeeze(1).numpy()])
        np.testing.assert_allclose(owned(rows, segments), want, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_read_onto_its_base_is_the_merged_policy_to_the_last_bit(stepped, tmp_path, dtype):
    for export in ("merged", "adapter"):
        stepped.section.lora.export = export
        stepped.save(tmp_path / export, optimizer=False)
    one, other = (dict(read_model(tmp_path / export, dtype)[0].named_parameters()) for export in ("merged", "adapter"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) and other[name].dtype == dtype for name in one)


shapes = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.floats(0.1, 4.0))


@given(shapes, st.integers(0, 1000))
def test_merging_is_linear_algebra(shape, seed):
    """x (W + s b a)^T against x W^T + s (x a^T) b^T, in float64 NumPy; what has no adapter is left as it is."""
    rank, n, m, scale = shape
    rng = np.random.default_rng(seed)
    a, b, w, x = (rng.normal(size=size) for size in ((rank, n), (m, rank), (m, n), (3, n)))
    state = {
        "q.base_layer.weight": torch.from_numpy(w).float(), "q.base_layer.bias": torch.ones(m),
        "q.lora_A.default.weight": torch.from_numpy(a).float(), "q.lora_B.default.weight": torch.from_numpy(b).float(),
        "norm.weight": torch.full((n,), 2.0),
    }  # fmt: skip
    whole = merged(state, scale)
    assert set(whole) == {"q.weight", "q.bias", "norm.weight"} and whole["norm.weight"] is state["norm.weight"]
    want = x @ w.T + scale * (x @ a.T) @ b.T
    np.testing.assert_allclose(x @ whole["q.weight"].double().numpy().T, want, rtol=1e-4, atol=1e-4)


@given(groups, st.sampled_from([40, 100_000]), st.sampled_from(["forest", "packed", "rows"]))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_gradient_is_that_of_peft_s_plain_forward_pass(stepped, shapes, tokens, layout):
    """Through the shared layout, the forest's attention and the head without logits, against logits held by torch."""
    policy, model = stepped.policy, stepped.policy.model
    given_ = grown(policy, shapes)
    model.zero_grad(set_to_none=True)
    for segment in given_:
        ids = torch.from_numpy(segment.ids).long()[None]
        logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1] / 0.9, -1).gather(1, ids[0, 1:, None]).squeeze(1)
        (-segment.advantage / len(given_) * logp[torch.from_numpy(segment.mask[1:])].mean()).backward()
    theirs = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    train = section(
        micro_batch_tokens=tokens, objective=ObjectiveSection("grpo"), share_prefixes=layout == "forest",
        correction=CorrectionSection(token_tis=0.0),
    )  # fmt: skip
    before, policy.packs = policy.packs, layout != "rows"
    try:
        Gradient(policy, train, 0.9, longest=64).accumulate(given_)
    finally:
        policy.packs = before
    ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert ours.keys() == theirs.keys() == {name for name, _ in model.named_parameters() if ".lora_" in name}
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5 * max(1.0, float(value.abs().max())))


def test_layers_computed_again_pull_the_same(stepped, segments, tmp_path):
    stepped.save(tmp_path / "1")
    gradients = []
    for again in (False, True):
        trainer = Trainer(tmp_path / "1", replace(lora(), checkpoint_layers=again))
        trainer.optimizer.step = lambda: None
        trainer.step(segments)
        gradients.append([p.grad for p in trainer.policy.model.parameters() if p.requires_grad])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("export", ["merged", "adapter"])
def test_a_resumed_step_is_bit_equal(tiny_policy, segments, tmp_path, export):
    straight = Trainer(tiny_policy, lora(export=export), seed=3)
    straight.step(segments)
    straight.save(tmp_path / "1")
    resumed = Trainer(tmp_path / "1", lora(export=export), seed=4)
    assert resumed.optimizer.steps == 1
    for trainer, name in ((straight, "2"), (resumed, "3")):
        trainer.step(segments)
        trainer.save(tmp_path / name)
    assert base_of(tmp_path / "3") == base_of(tmp_path / "1") and base_of(tmp_path / "3").path == str(tiny_policy)
    files = ["adapter/adapter_model.safetensors"] + ["model.safetensors"] * (export == "merged")
    for file in files:
        assert (tmp_path / "2" / file).read_bytes() == (tmp_path / "3" / file).read_bytes()


def test_where_the_base_is_the_reference_no_second_model_is_loaded(stepped, tiny_policy, segments, tmp_path):
    stepped.save(tmp_path / "1")
    held = replace(lora(), objective=ObjectiveSection(kl=0.5))
    alone = Trainer(tmp_path / "1", held, reference_dir=tiny_policy)
    assert alone._reference is alone.policy
    scored = alone._score_reference(segments)
    base = Trainer(tiny_policy, section()).score(segments)
    assert all(np.array_equal(a, b) for a, b in zip(scored, base, strict=True))
    stepped_rows = stepped.score(segments)
    assert all(np.array_equal(a, b) for a, b in zip(alone.score(segments), stepped_rows, strict=True))
    (tmp_path / "start").mkdir()
    for file in tiny_policy.iterdir():
        (tmp_path / "start" / file.name).write_bytes(file.read_bytes())
    two = Trainer(tmp_path / "1", held, reference_dir=tmp_path / "start")
    assert two._reference is not two.policy
    assert alone.step(segments).metrics["kl/reference"] == pytest.approx(two.step(segments).metrics["kl/reference"])
    assert all(torch.equal(a, b) for a, b in zip(weights(alone).values(), weights(two).values(), strict=True))


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (lora(rank=2), "was rank 4, alpha 8, all layers and is rank 2, alpha 8, all layers"),
        (lora(alpha=32.0), "was rank 4, alpha 8, all layers and is rank 4, alpha 32, all layers"),
        (lora(targets=["v_proj", "q_proj"]), "was rank 4, alpha 8, all layers and is rank 4, alpha 8, q_proj, v_proj"),
        (section(gate=WIDE), "was rank 4, alpha 8, all layers and is off"),
    ],
    ids=["rank", "alpha", "targets", "off"],
)
def test_another_setting_of_adapters_begins_anew_on_the_policy(stepped, segments, tmp_path, now, told):
    """With an optimizer of its own: moments and step count belong to what had been trained."""
    stepped.save(tmp_path / "1")
    want = owned(stepped.score(segments), segments)
    other = Trainer(tmp_path / "1", now)
    assert new_optimizer(tmp_path / "1", now.lora) == f"a new optimizer begins: train.lora {told}"
    assert (other.optimizer.steps, other.optimizer._adam.state_dict()["state"]) == (0, {})
    np.testing.assert_allclose(owned(other.score(segments), segments), want, atol=1e-5)
    assert other.step(segments).refused is None
    other.save(tmp_path / "2")
    base = base_of(tmp_path / "2")
    assert base is None if not now.lora.rank else base.path == str(tmp_path / "1")
    if now.lora.targets:
        adapted = json.loads((tmp_path / "2/adapter/adapter_config.json").read_text())
        assert sorted(adapted["target_modules"]) == ["q_proj", "v_proj"]
    assert new_optimizer(tmp_path / "2", now.lora) == ""
    assert Trainer(tmp_path / "2", now).optimizer.steps == 1


@pytest.mark.parametrize(
    ("name", "words"), [("q_prj", "did you mean q_proj?"), ("lm_head", "it has down_proj"), ("norm", "it has down_")]
)
def test_a_target_that_is_not_there_is_told_in_one_line(tiny_policy, name, words):
    with pytest.raises(ConfigError, match="train.lora.targets") as caught:
        Trainer(tiny_policy, lora(targets=["q_proj", name]))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_base_that_is_gone_or_another_is_told(tiny_policy, segments, tmp_path):
    start = tmp_path / "0"
    start.mkdir()
    for file in tiny_policy.iterdir():
        (start / file.name).write_bytes(file.read_bytes())
    Trainer(start, lora(export="adapter")).save(tmp_path / "1")
    policy = PolicyRef(1, str(tmp_path / "1"), folder_digest(tmp_path / "1"))
    (start / "generation_config.json").write_text("{}")
    with pytest.raises(EngineError, match="the base of policy 1 .* not the recorded"):
        load_model(policy, torch.float32, torch.device("cpu"))
    start.rename(tmp_path / "moved")
    with pytest.raises(EngineError, match="which is not there"):
        load_model(policy, torch.float32, torch.device("cpu"))
    with pytest.raises(TrainerError, match="which is not there"):
        Trainer(tmp_path / "1", lora())
    half = tmp_path / "1/adapter/adapter_model.safetensors"
    half.write_bytes(half.read_bytes()[:99])
    (tmp_path / "moved").rename(start)
    with pytest.raises(TrainerError, match="cannot be read"):
        Trainer(tmp_path / "1", lora(export="adapter"))


def test_the_digest_of_an_adapter_is_of_it_and_its_base(stepped, tmp_path):
    stepped.section.lora.export = "adapter"
    stepped.save(tmp_path / "1", optimizer=False)
    seen = {folder_digest(tmp_path / "1")}
    about = json.loads((tmp_path / "1/base.json").read_text())
    (tmp_path / "1/base.json").write_text(json.dumps(about | {"path": "elsewhere"}))
    assert folder_digest(tmp_path / "1") in seen
    (tmp_path / "1/base.json").write_text(json.dumps(about | {"digest": "another"}))
    seen.add(folder_digest(tmp_path / "1"))
    file = tmp_path / "1/adapter/adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    seen.add(folder_digest(tmp_path / "1"))
    assert len(seen) == 3


def test_a_mixture_of_experts_is_adapted_where_it_is_linear(tmp_path):
    from tests.trainer.test_routing import CONFIGS

    for name, config in CONFIGS.items():
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
        trainer = Trainer(tmp_path / name, lora())
        given_ = sample(tmp_path / name, trials=2)
        adapted = {n for n, module in trainer.policy.model.named_modules() if hasattr(module, "set_scale")}
        assert adapted and not any(part in n for n in adapted for part in (".mlp.gate.", "lm_head"))
        for _ in range(2):
            assert trainer.step(given_).refused is None
        trainer.save(tmp_path / f"{name}-1", optimizer=False)
        whole = Trainer(tmp_path / f"{name}-1", section())
        # These weights are so wide that float32's own rounding moves log-probs by 4e-4; a wrong scale would by .1.
        np.testing.assert_allclose(owned(whole.score(given_), given_), owned(trainer.score(given_), given_), atol=1e-4)
        assert Path(base_of(tmp_path / f"{name}-1").path) == tmp_path / name


def test_teaching_moves_the_adapter_alone_and_goes_on_after_a_kill(tiny_policy, segments, tmp_path):
    shown = [replace(s, logprobs=np.zeros_like(s.logprobs), sampler="script", advantage=0.0) for s in segments]
    plan = SftSection(epochs=3, batch_trials=2, held_out=0.0, optimizer=OptimizerSection(lr=1e-2))
    whole = Trainer(tiny_policy, lora())
    before = weights(whole)
    report = run_sft(whole, shown, plan)
    assert report.losses[-1] < report.losses[0]
    assert all(torch.equal(value, before[name]) for name, value in weights(whole).items() if ".lora_" not in name)

    teach_until_killed(Trainer(tiny_policy, lora()), shown, plan, tmp_path / "kept")
    steps = []
    run_sft(Trainer(tiny_policy, lora(rank=2)), shown[:2], plan, keep=tmp_path / "other")
    resumed = Trainer(tiny_policy, lora())
    assert run_sft(resumed, shown, plan, steps.append, tmp_path / "kept").losses == report.losses
    assert steps[0].step > 1
    assert all(torch.equal(weights(resumed)[name], value) for name, value in weights(whole).items())
    afresh = []
    run_sft(Trainer(tiny_policy, lora(rank=2)), shown, plan, afresh.append, tmp_path / "kept")
    assert afresh[0].step == 1  # what an adapter of another shape left is not taken up


def test_what_an_adapter_stands_on_is_not_let_go(tmp_path):
    """Policies 1 to 5 by rank: whole, whole, an adapter on 2, one of another shape on 3, whole again."""
    store = Store.open(tmp_path / "run.db")
    for version, stood_on in enumerate([None, None, None, 2, 3, None]):
        folder = tmp_path / str(version)
        folder.mkdir()
        if stood_on is not None:
            (folder / "base.json").write_text(json.dumps({"path": str(tmp_path / str(stood_on)), "digest": "d"}))
        made_by = "train" if version else "start"
        catalogue.add_policy(
            store, parent=version - 1 if version else None, path=str(folder), digest="d", made_by=made_by
        )
    assert [row["version"] for row in removable(store, 1)] == [1]
    assert [row["version"] for row in removable(store, 3)] == [1]
    assert removable(store, 0) == []
    (tmp_path / "4/base.json").unlink()
    assert [row["version"] for row in removable(store, 1)] == [1, 2, 3]
    store.close()
