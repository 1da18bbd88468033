from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lego.config.schema import CorrectionSection, GateSection, ObjectiveSection
from lego.errors import ConfigError, ObjectiveError, TrainerError
from lego.metrics import METRICS
from lego.trainer.step import WORST_TOKENS, Trainer
from tests.trainer._sampled import sample, section, weights


@pytest.fixture(scope="module")
def segments(tiny_policy):
    return sample(tiny_policy)


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_score_reproduces_the_sampler(tiny_policy, segments):
    trainer = Trainer(tiny_policy, section(micro_batch_tokens=64))
    for segment, row in zip(segments, trainer.score(segments), strict=True):
        assert row.shape == segment.ids.shape
        assert not row[~segment.mask].any()
        np.testing.assert_allclose(row[segment.mask], segment.logprobs[segment.mask], atol=1e-5)


def test_a_step_moves_the_weights_and_reports_known_metrics(tiny_policy, segments):
    trainer = Trainer(tiny_policy, section())
    before = weights(trainer)
    report = trainer.step(segments)
    assert report.refused is None
    assert not same(before, weights(trainer))
    assert set(report.metrics) <= set(METRICS)
    assert report.metrics["proof/correlation"] > 0.9999
    assert report.metrics["proof/mean_gap"] < 1e-5
    assert report.metrics["ratio/mean"] == 1.0
    assert report.metrics["step/lr"] == pytest.approx(1e-3 / 4)
    assert report.metrics["step/tokens"] == sum(s.mask.sum() for s in segments)
    assert len(report.worst) == WORST_TOKENS
    assert report.worst[0]["trial_id"] in {s.trial_id for s in segments}


@pytest.mark.parametrize("name", ["gspo", "grpo", "cispo", "reinforce"])
def test_the_gradient_at_ratio_one_is_the_policy_gradient_of_each_trial(tiny_policy, segments, name, monkeypatch):
    """- mean over trials of A x mean over the trial's tokens of grad log pi, from a forward pass of our own."""
    halves = []
    for segment in segments:
        first, second = segment.mask.copy(), segment.mask.copy()
        first[np.flatnonzero(segment.mask)[4:]] = False
        second &= ~first
        for mask in (first, second):
            logprobs = np.where(mask, segment.logprobs, 0).astype(np.float32)
            halves.append(replace(segment, mask=mask, logprobs=logprobs, weight=mask.sum() / segment.mask.sum()))
    settings = section(objective=ObjectiveSection(name=name, weighting="trial"), micro_batch_tokens=40)
    settings.optimizer.max_grad_norm = 0
    trainer = Trainer(tiny_policy, settings)
    monkeypatch.setattr(trainer.optimizer, "step", lambda: None)
    report = trainer.step(halves)
    assert report.refused is None

    model = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32).eval()
    for segment in segments:
        ids = torch.from_numpy(segment.ids.astype(np.int64))[None]
        logp = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None]).squeeze(1)
        owned = torch.from_numpy(segment.mask[1:])
        (-segment.advantage * logp[owned].mean() / len(segments)).backward()
    # token TIS multiplies by pi_old / mu, which is 1 to the last few digits
    for (label, p), q in zip(trainer.policy.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=2e-6, msg=lambda m, n=label: f"{n}: {m}")


def test_micro_batches_and_order_do_not_change_the_update(tiny_policy, segments):
    gradients = []
    for tokens, order in ((10_000, [0, 1, 2, 3]), (30, [0, 1, 2, 3]), (70, [3, 1, 0, 2])):
        trainer = Trainer(tiny_policy, section(micro_batch_tokens=tokens))
        trainer.optimizer.step = lambda: None  # type: ignore[method-assign]
        trainer.step([segments[i] for i in order])
        gradients.append([p.grad for p in trainer.policy.model.parameters()])
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_segments_without_advantage_are_proven_but_pull_nothing(tiny_policy, segments):
    flat = [replace(s, advantage=0.0, trial_id=s.trial_id + 50) for s in segments]
    alone, mixed = Trainer(tiny_policy, section()), Trainer(tiny_policy, section())
    for trainer, given in ((alone, segments), (mixed, [flat[0], *segments, *flat[1:]])):
        trainer.optimizer.step = lambda: None  # type: ignore[method-assign]
        trainer.section.optimizer.max_grad_norm = 0
        report = trainer.step(given)
    assert report.metrics["proof/tokens"] == 2 * sum(s.mask.sum() for s in segments)
    for a, b in zip(alone.policy.model.parameters(), mixed.policy.model.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad / 2, rtol=1e-4, atol=1e-7)


def test_a_flat_trial_that_counts_for_half_dilutes_by_half(tiny_policy, segments):
    flat = [replace(s, advantage=0.0, trial_id=s.trial_id + 50, counts=0.5) for s in segments]
    alone, mixed = Trainer(tiny_policy, section()), Trainer(tiny_policy, section())
    for trainer, given in ((alone, segments), (mixed, [*segments, *flat])):
        trainer.optimizer.step = lambda: None  # type: ignore[method-assign]
        trainer.section.optimizer.max_grad_norm = 0
        assert trainer.step(given).refused is None
    for a, b in zip(alone.policy.model.parameters(), mixed.policy.model.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad / 1.5, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("fault", ["gap", "temperature", "flat", "nan"])
def test_a_refused_step_leaves_everything_as_it_was(tiny_policy, segments, fault, minibatches):
    trainer = Trainer(tiny_policy, section(minibatches=minibatches), temperature=0.8 if fault == "temperature" else 1.0)
    given = segments
    if fault == "gap":
        given = [replace(s, logprobs=np.where(s.mask, s.logprobs - 0.01, 0).astype(np.float32)) for s in segments]
    if fault == "flat":
        given = [replace(s, advantage=0.0) for s in segments]
    if fault == "nan":
        with torch.no_grad():
            trainer.policy.model.get_input_embeddings().weight[segments[0].ids[0]] = float("nan")
    before = weights(trainer)
    report = trainer.step(given)
    words = {"gap": "mean_logp_gap", "temperature": "mean_logp_gap", "flat": "no gradient", "nan": "not finite"}
    assert words[fault] in str(report.refused)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(
        before.values(), weights(trainer).values(), strict=True))  # fmt: skip
    assert trainer.optimizer.steps == 0
    assert all(p.grad is None for p in trainer.policy.model.parameters())
    if fault == "gap":
        assert report.worst[0]["logp_train"] - report.worst[0]["logp_engine"] == pytest.approx(0.01, abs=1e-4)


def test_nothing_given_is_nothing_done(tiny_policy):
    assert "no gradient" in str(Trainer(tiny_policy, section()).step([]).refused)


def test_a_gap_within_the_gate_is_corrected_for(tiny_policy, segments):
    """mu is 0.7 nats off pi_old everywhere: each token's pull is min(e^0.7, 1.5) of what it was."""
    off = [replace(s, logprobs=np.where(s.mask, s.logprobs - 0.7, 0).astype(np.float32)) for s in segments]
    wide = GateSection(mean_logp_gap=1.0, k3=1.0, min_correlation=0.0)
    norms = {}
    for label, given, tis in (("on", segments, 1.5), ("off", off, 1.5), ("none", off, 0.0)):
        trainer = Trainer(tiny_policy, section(gate=wide, correction=CorrectionSection(token_tis=tis)))
        report = trainer.step(given)
        norms[label] = report.metrics["step/grad_norm"]
        assert report.metrics.get("correction/capped", 0.0) == (1.0 if label == "off" else 0.0)
    assert norms["off"] == pytest.approx(1.5 * norms["on"], rel=1e-3)
    assert norms["none"] == pytest.approx(norms["on"], rel=1e-3)


def test_bypass_takes_the_engines_log_probs_as_old(tiny_policy, segments):
    off = [replace(s, logprobs=np.where(s.mask, s.logprobs - 1e-4, 0).astype(np.float32)) for s in segments]
    trainer = Trainer(tiny_policy, section(correction=CorrectionSection(old="bypass")))
    report = trainer.step(off)
    assert report.metrics["ratio/mean"] == pytest.approx(np.exp(1e-4), abs=1e-6)
    assert report.metrics["correction/weight"] == 1.0


WIDE = GateSection(mean_logp_gap=99.0, k3=1e9, min_correlation=-1.0)


def shifted(segments, by):
    return [replace(s, logprobs=np.where(s.mask, s.logprobs - by, 0).astype(np.float32)) for s in segments]


@pytest.mark.parametrize("name", ["gspo", "grpo", "reinforce"])
@pytest.mark.parametrize("mask", [{"veto": 0.5}, {"geometric": [0.9, 1.1]}, {"sequence_mask": 3.0}])
def test_bypass_keeps_the_masks(tiny_policy, segments, name, mask):
    """Half of the trials are 3 nats off: what is left is the step on the others."""
    far = shifted(segments, -3.0 if "veto" in mask else 3.0)
    given = [*segments[:2], *far[2:]]
    norms = []
    for half in (given, [replace(s, advantage=0.0) if s.trial_id > 101 else s for s in segments]):
        how = section(gate=WIDE, correction=CorrectionSection(old="bypass", **mask), objective=ObjectiveSection(name))
        report = Trainer(tiny_policy, how).step(half)
        norms.append(report.metrics["step/grad_norm"])
        assert report.metrics["correction/masked"] == (0.5 if half is given else 0.0)
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_a_correction_is_reported_as_it_was_applied_after_weights_moved_too(tiny_policy, segments):
    """Engine and trainer agree: nothing is masked, however far the first mini-batch moves pi."""
    how = section(gate=WIDE, minibatches=2, correction=CorrectionSection(veto=0.99, geometric=[0.999, 1.001]))
    how.optimizer.lr, how.optimizer.warmup = 0.1, 0
    report = Trainer(tiny_policy, how).step(segments)
    assert report.metrics["step/updates"] == 2 and report.metrics["ratio/mean"] != pytest.approx(1.0, abs=1e-2)
    assert report.metrics["correction/masked"] == 0.0
    assert report.metrics["correction/weight"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_step_of_which_a_correction_leaves_nothing_is_refused(tiny_policy, segments, tmp_path, minibatches):
    """AdamW has moments by then, and would move the weights by them alone."""
    begun = Trainer(tiny_policy, section())
    begun.step(segments)
    begun.save(tmp_path / "1")
    how = section(gate=WIDE, minibatches=minibatches, correction=CorrectionSection(geometric=[0.999, 1.001]))
    trainer = Trainer(tmp_path / "1", how)
    before = weights(trainer)
    report = trainer.step(shifted(segments, 1.0))
    assert report.refused == "train.correction leaves out every token that has an advantage"
    assert report.metrics["correction/masked"] == 1.0 and report.metrics["step/updates"] == 0
    assert same(before, weights(trainer)) and trainer.optimizer.steps == 1


def test_a_device_that_is_not_there_is_refused(tiny_policy, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="engine.device: cuda"):
        Trainer(tiny_policy, section(), device="cuda")


@pytest.mark.parametrize(("name", "pull"), [("reinforce", 1.5), ("grpo", np.exp(0.7))])
def test_bypass_corrects_once(tiny_policy, segments, name, pull):
    """mu is 0.7 nats off: grpo's ratio tells, and reinforce, which has none, weighs by min(pi / mu, 1.5)."""
    objective = ObjectiveSection(name, clip_high=9.0 * (name == "grpo"), clip_low=1.0 * (name == "grpo"))
    how = section(gate=WIDE, correction=CorrectionSection(old="bypass", token_tis=1.5), objective=objective)
    on, off = (Trainer(tiny_policy, how).step(given) for given in (segments, shifted(segments, 0.7)))
    assert off.metrics["step/grad_norm"] == pytest.approx(pull * on.metrics["step/grad_norm"], rel=1e-3)


def test_reinforce_with_bypass_weighs_what_the_first_mini_batch_moved(tiny_policy, segments):
    how = section(gate=WIDE, minibatches=2, correction=CorrectionSection(old="bypass", token_tis=9.0))
    how.objective.name = "reinforce"
    report = Trainer(tiny_policy, how).step(segments)
    assert report.metrics["step/updates"] == 2
    assert report.metrics["correction/weight"] != pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_what_a_step_reports_is_of_the_same_tokens_however_many_groups_are_flat(tiny_policy, segments, kl):
    """The first half's groups go flat: surprise and correction stay those of all sampled tokens, and the ratio's
    numbers are of what has an advantage, held near a reference or not."""
    off = [*shifted(segments[:2], 1.0), *segments[2:]]
    flat = [*(replace(s, advantage=0.0) for s in off[:2]), *off[2:]]
    reports = []
    for minibatches in (1, 2):
        for given in (off, flat):
            how = section(gate=WIDE, minibatches=minibatches, objective=ObjectiveSection("grpo", kl=kl))
            how.optimizer.lr = 1e-30
            reports.append(Trainer(tiny_policy, how, reference_dir=tiny_policy).step(given).metrics)
    scored = Trainer(tiny_policy, section()).score(segments)
    tokens = np.concatenate([row[s.mask] for row, s in zip(scored, segments, strict=True)])
    for metrics in reports:
        assert metrics["step/surprise"] == pytest.approx(-tokens.mean(), rel=1e-5)
        assert metrics["correction/weight"] == pytest.approx(1.5, rel=1e-4)
        assert metrics["correction/capped"] == 0.5
        assert metrics["ratio/mean"] == 1.0


def test_mini_batches_step_on_moved_weights(tiny_policy, segments):
    trainer = Trainer(tiny_policy, section(minibatches=2, objective=ObjectiveSection("grpo")))
    report = trainer.step(segments)
    assert report.refused is None
    assert trainer.optimizer.steps == 2
    assert report.metrics["ratio/k3"] > 0  # the second meets a policy that is no longer pi_old
    assert report.metrics["proof/tokens"] == sum(s.mask.sum() for s in segments)


def test_one_ratio_a_trial_whatever_it_was_cut_into(tiny_policy, segments):
    """Two mini-batches, so that the second meets moved weights: cut in halves, the trials move the weights the same."""
    halves = []
    for segment in segments:
        first, second = segment.mask.copy(), segment.mask.copy()
        first[np.flatnonzero(segment.mask)[3:]] = False
        second &= ~first
        for mask in (first, second):
            logprobs = np.where(mask, segment.logprobs, 0).astype(np.float32)
            halves.append(replace(segment, mask=mask, logprobs=logprobs, weight=mask.sum() / segment.mask.sum()))
    wide = ObjectiveSection(ratio="trial", clip_low=0.5, clip_high=0.5)
    moved = []
    for given in (segments, halves):
        trainer = Trainer(tiny_policy, section(minibatches=2, objective=wide))
        assert trainer.step(given).refused is None
        moved.append(weights(trainer))
    for name, value in moved[0].items():
        torch.testing.assert_close(moved[1][name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("weighting", ["token", "constant"])
def test_other_weightings_scale_each_trial(tiny_policy, segments, weighting):
    """Against trial weighting: n_trial / all tokens x N, or n_trial / longest, for a step on each trial alone."""
    short = replace(segments[0], mask=segments[0].mask & (np.arange(len(segments[0].mask)) < 6))
    short = replace(short, logprobs=np.where(short.mask, short.logprobs, 0).astype(np.float32))
    both, longest = [short, segments[1]], 40
    owned = [int(segment.mask.sum()) for segment in both]

    def gradient(given, **changes):
        settings = section(objective=ObjectiveSection(**changes))
        settings.optimizer.max_grad_norm = 0
        trainer = Trainer(tiny_policy, settings, longest=longest)
        trainer.optimizer.step = lambda: None  # type: ignore[method-assign]
        assert trainer.step(given).refused is None
        return [p.grad for p in trainer.policy.model.parameters()]

    alone = [gradient([segment], weighting="trial") for segment in both]
    factors = [n / sum(owned) if weighting == "token" else n / longest / 2 for n in owned]
    for whole, one, two in zip(gradient(both, weighting=weighting), *alone, strict=True):
        torch.testing.assert_close(whole, factors[0] * one + factors[1] * two, rtol=1e-4, atol=1e-6)


def test_the_policy_is_held_near_its_reference(tiny_policy, segments, tmp_path):
    """Away from the reference, KL alone pulls back; at it, there is nothing to pull."""
    trainer = Trainer(tiny_policy, section(objective=ObjectiveSection(kl=1.0)), reference_dir=tiny_policy)
    report = trainer.step(segments)
    assert report.metrics["kl/reference"] == pytest.approx(0, abs=1e-9)
    trainer.save(tmp_path / "moved", optimizer=False)
    flat = [replace(s, advantage=0.0) for s in segments]
    held = section(objective=ObjectiveSection(kl=1.0), gate=GateSection(9.0, 9.0, -1.0))
    back = Trainer(tmp_path / "moved", held, reference_dir=tiny_policy)
    distances = [back.step(flat).metrics["kl/reference"] for _ in range(6)]
    assert distances[0] > 1e-5
    assert distances[-1] < distances[0]


def test_scripted_tokens_carry_no_policy_gradient(tiny_policy, segments):
    scripted = replace(segments[0], logprobs=np.zeros_like(segments[0].logprobs), sampler="script")
    with pytest.raises(TrainerError, match="scripted"):
        Trainer(tiny_policy, section()).step([scripted, *segments[1:]])


def test_a_resumed_step_is_bit_equal(tiny_policy, segments, tmp_path):
    straight = Trainer(tiny_policy, section(minibatches=2), seed=3)
    straight.step(segments)
    straight.save(tmp_path / "one")
    resumed = Trainer(tmp_path / "one", section(minibatches=2), seed=3)
    assert resumed.optimizer.steps == 2
    wide = GateSection(mean_logp_gap=9.0, k3=9.0, min_correlation=-1.0)  # the samples are one policy old by now
    for trainer in (straight, resumed):
        trainer.section.gate = wide
    first, second = straight.step(segments), resumed.step(segments)
    assert same(weights(straight), weights(resumed))
    assert first.metrics["step/loss"] == second.metrics["step/loss"]
    resumed.save(tmp_path / "two")
    straight.save(tmp_path / "three")
    assert (tmp_path / "two/model.safetensors").read_bytes() == (tmp_path / "three/model.safetensors").read_bytes()


def test_a_step_makes_good_trials_likelier_and_bad_ones_less_so(tiny_policy, segments):
    trainer = Trainer(tiny_policy, section(objective=ObjectiveSection("grpo")))
    before = trainer.score(segments)
    for _ in range(3):
        trainer.section.gate = GateSection(mean_logp_gap=9.0, k3=9.0, min_correlation=-1.0)
        trainer.step(segments)
    change = [float((b - a).sum()) for a, b in zip(before, trainer.score(segments), strict=True)]
    assert change[0] > 0 > change[1] and change[2] > 0 > change[3]


def test_settings_that_cannot_be_trained_on(tiny_policy):
    with pytest.raises(ConfigError, match="temperature"):
        Trainer(tiny_policy, section(), temperature=0.0)
    with pytest.raises(ObjectiveError, match="ppo"):
        Trainer(tiny_policy, section(objective=ObjectiveSection(name="ppo")))
    with pytest.raises(ConfigError, match="reference"):
        Trainer(tiny_policy, section(objective=ObjectiveSection(kl=0.1)))
