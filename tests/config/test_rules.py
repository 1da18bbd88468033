import pytest

from lego.config import rules
from lego.config.fields import settings
from lego.config.load import load
from lego.config.places import harness_specs_dir
from lego.config.schema import Config, RunSection, TaskSource
from lego.errors import ConfigError
from tests.conftest import CONFIGS


def fine() -> Config:
    config = Config(run=RunSection(name="a"))
    config.policy.model = "m"
    config.tasks.train = [TaskSource("family", name="off-by-one", count=4, seed=1)]
    return config


def broken(config: Config) -> dict[str, str]:
    return {problem.key: problem.message for problem in rules.broken(config)}


def test_the_defaults_break_no_rule():
    assert broken(fine()) == {}


CASES = {
    "run.name": "../escape",
    "run.seed": -1,
    "policy.context": 1,
    "policy.renderer": "",
    "engine.kind": "vlm",
    "engine.dtype": "float16",
    "engine.tensor_parallel": 0,
    "sandbox.memory": "512",
    "sandbox.disk": "lots",
    "sandbox.timeout": "soon",
    "sandbox.network": "open",
    "sandbox.cpus": 0,
    "images.base": "debian",
    "rollout.samples_per_task": 1,
    "rollout.temperature": 0,
    "rollout.max_output_tokens": 4096,
    "rollout.max_total_tokens": 5,
    "rollout.lease": "0s",
    "verify.timeout": "x",
    "verify.tamper": "penalize",
    "train.objective.name": "ppo",
    "train.objective.clip_low": 1.5,
    "train.objective.advantage": "mean",
    "train.objective.weighting": "tokens",
    "train.objective.kl": -1,
    "train.objective.flat": "drop",
    "train.correction.sequence_tis": 2,
    "train.correction.geometric": [1.1, 0.9],
    "train.correction.veto": 1,
    "train.correction.token_tis": 0.5,
    "train.optimizer.betas": [0.9],
    "train.optimizer.lr": 0,
    "sft.optimizer.betas": [0.9, 1.0],
    "eval.temperature": -1,
    "loop.rounds": 0,
    "harness": {},
}


@pytest.mark.parametrize("key", CASES)
def test_each_rule_names_the_key_that_breaks_it(key):
    config = fine()
    *sections, last = key.split(".")
    section = config
    for name in sections:
        section = getattr(section, name)
    setattr(section, last, CASES[key])
    assert key in broken(config)


def test_near_misses_are_recognised():
    config = fine()
    config.verify.tamper = "penalize"
    assert "did you mean penalise?" in broken(config)["verify.tamper"]


@pytest.mark.parametrize(
    ("source", "key"),
    [
        (TaskSource("harbour", path="x"), "source"),
        (TaskSource("harbor"), "path"),
        (TaskSource("family", count=3), "name"),
        (TaskSource("family", name="f"), "count"),
        (TaskSource("family", name="f", count=1, path="x"), "path"),
        (TaskSource("harbor", path="x", count=-1), "count"),
        (TaskSource("harbor", path="x", name="f"), "name"),
    ],
)
def test_task_sources_say_what_they_need(source, key):
    config = fine()
    config.tasks.train = [source]
    assert f"tasks.train[0].{key}" in broken(config)


def test_a_harbor_source_may_have_options_and_a_harness():
    config = fine()
    config.tasks.train = [TaskSource("harbor", path="x", options={"network": "sealed"}, harness="codex")]
    assert broken(config) == {}


def test_held_out_tasks_are_not_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = fine()
    config.tasks.eval = [TaskSource("family", name="off-by-one", count=9, seed=1)]
    assert "tasks.eval[0]" in broken(config)
    config.tasks.eval[0].seed = 2
    assert broken(config) == {}
    config.tasks.train = [TaskSource("harbor", path="tasks/basics")]
    config.tasks.eval = [TaskSource("harbor", path=str(tmp_path / "tasks" / "basics"))]
    assert "tasks.eval[0]" in broken(config)


BYPASS = ["correction.old=bypass", "correction.token_tis=0"]


@pytest.mark.parametrize(
    ("key", "overrides"),
    [
        ("train.correction.icepop", [*BYPASS, "correction.icepop=[0.5,5]"]),
        ("train.correction.sequence_tis", [*BYPASS, "correction.sequence_tis=2"]),
        ("train.minibatches", ["objective.name=rloo", "minibatches=4"]),
        ("train.minibatches", [*BYPASS, "objective.name=rloo", "minibatches=4"]),
        ("train.objective.clip_high", ["objective.name=reinforce", "objective.clip_high=0.5"]),
        ("train.objective.clip_low", ["objective.name=rloo", "objective.clip_low=0.5"]),
        ("train.objective.segment_weight", ["objective.ratio=trial", "objective.segment_weight=equal"]),
        ("train.objective.flat_weight", ["objective.flat_weight=0.1"]),
    ],
)  # fmt: skip
def test_settings_that_would_mean_nothing_are_refused(tmp_path, key, overrides):
    path = tmp_path / "a.yaml"
    path.write_text("run: {name: a}\npolicy: {model: m}\n")
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        load(path, [f"train.{override}" for override in overrides])


@pytest.mark.parametrize(
    "overrides",
    [
        ["correction.old=bypass", "correction.geometric=[0.99,1.01]", "correction.veto=1e-4"],
        ["correction.old=bypass", "objective.name=rloo", "minibatches=4"],
        ["objective.flat=weigh", "objective.flat_weight=0.1"],
    ],
)
def test_and_those_that_mean_something_are_not(tmp_path, overrides):
    path = tmp_path / "a.yaml"
    path.write_text("run: {name: a}\npolicy: {model: m}\n")
    load(path, [f"train.{override}" for override in overrides])


def test_only_vllm_divides_a_policy():
    config = fine()
    config.engine.tensor_parallel = 2
    assert "only vllm" in broken(config)["engine.tensor_parallel"]
    config.engine.kind = "vllm"
    assert broken(config) == {}


def test_a_scripted_run_needs_no_group():
    config = fine()
    config.engine.kind = "scripted"
    config.rollout.samples_per_task = 1
    assert broken(config) == {}


def test_a_harness_with_weight_zero_is_refused():
    config = fine()
    config.harness = {"tiny-agent": 1.0, "other": 0.0}
    assert list(broken(config)) == ["harness.other"]


def test_the_rules_speak_only_of_settings_that_exist():
    known = {setting.key for setting in settings()}
    named = {*rules.CHOICES, *rules.BOUNDS, *rules.DURATIONS, *rules.SIZES}
    assert named <= known


def test_choices_in_the_docs_are_those_of_the_rules():
    docs = {setting.key: setting.doc for setting in settings()}
    for key, choices in rules.CHOICES.items():
        for choice in choices:
            assert choice in docs[key], f"{key}: the schema's doc does not name {choice}"


def test_a_broken_rule_is_told_with_its_line(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("run: {name: a}\npolicy: {model: m}\nrollout:\n  temperature: 0\n")
    with pytest.raises(ConfigError, match=r"rollout\.temperature: must be more than 0.*\(.*a\.yaml line 4\)"):
        load(path)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configs_that_lego_ships_are_valid(path):
    config = load(path).config
    assert config.run.name == path.stem
    for harness in config.harness:
        assert (harness_specs_dir() / f"{harness}.yaml").is_file()
