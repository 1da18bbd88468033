import json
from pathlib import Path

import pytest

from lego.config.fields import settings
from lego.config.load import flat, load, resolved, tags
from lego.config.schema import Config
from lego.errors import ConfigError

LEARN = """\
run: {name: learn, seed: 7}
policy:
  model: start
tasks:
  train: [{source: family, name: off-by-one, count: 472, seed: 1}]
  eval:
    - source: family
      name: off-by-one
      count: 128
      seed: 2
train:
  objective: {name: gspo, clip_low: 3e-4}
"""


@pytest.fixture
def config_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str = LEARN, name: str = "learn.yaml") -> Path:
        Path(name).write_text(text)
        return Path(name)

    return write


def refused(path, *overrides) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    assert caught.value.fault == "user"
    return caught.value


def test_a_config_becomes_typed_sections(config_file):
    config = load(config_file()).config
    assert isinstance(config, Config)
    assert config.run.seed == 7
    assert config.train.objective.clip_low == pytest.approx(3e-4)
    assert config.tasks.eval[0].count == 128
    assert config.rollout.samples_per_task == Config().rollout.samples_per_task


def test_every_value_knows_where_it_came_from(config_file):
    loaded = load(config_file(), ["rollout.max_turns=3", "tasks.train[0].seed=9"])
    assert loaded.origin["run.seed"] == "learn.yaml:1"
    assert loaded.origin["train.objective.clip_low"] == "learn.yaml:12"
    assert loaded.origin["rollout.max_turns"] == "command line"
    assert loaded.origin["tasks.train"] == "command line"
    assert loaded.origin["tasks.eval"] == "learn.yaml:6"
    assert loaded.origin["engine.kind"] == "default"
    assert loaded.origin.keys() == tags().keys() == flat(loaded.config).keys()


def test_resolved_is_plain_and_complete(config_file):
    tree = resolved(load(config_file()).config)
    assert tree["train"]["optimizer"]["betas"] == [0.9, 0.999]
    assert tree["tasks"]["train"][0]["name"] == "off-by-one"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("rollout.temperature=0.5", "rollout.temperature", 0.5),
        ("rollout.temperature=1", "rollout.temperature", 1.0),
        ("train.optimizer.lr=1e-3", "train.optimizer.lr", 1e-3),
        ("train.optimizer.betas=[0.8, 0.9]", "train.optimizer.betas", [0.8, 0.9]),
        ("sandbox.timeout=90", "sandbox.timeout", "90"),
        ("sandbox.runtime=off", "sandbox.runtime", "off"),
        ("verify.timeout=", "verify.timeout", ""),
        ("harness={mini-swe-agent: 2}", "harness", {"mini-swe-agent": 2.0}),
        ("harness.mini-swe-agent=2", "harness", {"tiny-agent": 1.0, "mini-swe-agent": 2.0}),
        ("images.base_map.python:3.11-slim=base", "images.base_map", {"python:3.11-slim": "base"}),
        ("images.base_map[python:3.11-slim]=base", "images.base_map", {"python:3.11-slim": "base"}),
        ("run.dir=${run.name}/x=y", "run.dir", "learn/x=y"),
        ("sft.source=oracle", "sft.source", "oracle"),
        ("sandbox.accept_unenforced_limits=true", "sandbox.accept_unenforced_limits", True),
    ],
)
def test_overrides_win(config_file, override, key, value):
    found = flat(load(config_file(), [override]).config)[key]
    assert found == value
    assert type(found) is type(value)


def test_an_override_of_a_section_keeps_the_rest_of_it(config_file):
    loaded = load(config_file(), ["train={objective: {clip_high: 0.5}, minibatches: 2}"])
    assert loaded.config.train.objective.clip_low == pytest.approx(3e-4)
    assert loaded.config.train.objective.clip_high == 0.5
    assert loaded.origin["train.objective.clip_high"] == "command line"
    assert loaded.origin["train.objective.clip_low"] == "learn.yaml:12"


def test_every_setting_can_be_given_on_the_command_line(config_file):
    path = config_file()
    values = flat(load(path).config)
    loaded = load(path, [f"{setting.key}={json.dumps(values[setting.key])}" for setting in settings()])
    assert flat(loaded.config) == values
    assert set(loaded.origin.values()) == {"command line"}


def test_the_last_override_of_a_key_counts(config_file):
    assert load(config_file(), ["run.seed=1", "run.seed=2"]).config.run.seed == 2


def test_an_override_inside_a_list_leaves_the_file_s_other_values(config_file):
    source = load(config_file(), ["tasks.eval.0.count=5"]).config.tasks.eval[0]
    assert (source.count, source.seed) == (5, 2)


def test_a_free_mapping_replaces_its_default(config_file):
    config = load(config_file(LEARN + "harness: {mini-swe-agent: 1.0}\n")).config
    assert config.harness == {"mini-swe-agent": 1.0}


def test_a_section_whose_lines_are_commented_out_means_the_defaults(config_file):
    assert load(config_file(LEARN + "rollout:\n  # max_turns: 3\n")).config.rollout == Config().rollout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train2: {}\n", "train2: no such key; did you mean train? (bad.yaml line 13)"),
        ("rollout:\n  max_turn: 3\n", "rollout.max_turn: no such key; did you mean rollout.max_turns? (bad.yaml line"),
        ("rollout: {lr: 3}\n", "rollout.lr: no such key; did you mean train.optimizer.lr? (bad.yaml line 13)"),
        ("rollout: {zzz: 3}\n", "rollout.zzz: no such key; keys here: tasks_per_round,"),
        ("rollout: {max_turns: many}\n", "rollout.max_turns: must be a whole number, not 'many' (bad.yaml line 13)"),
        ("rollout: {max_turns: 2.5}\n", "rollout.max_turns: must be a whole number, not 2.5"),
        ("rollout: {max_turns: true}\n", "rollout.max_turns: must be a whole number, not true"),
        ("rollout: {max_turns: }\n", "rollout.max_turns: must be a whole number, not nothing"),
        ("rollout: {temperature: .nan}\n", "rollout.temperature: must be a number"),
        ("rollout: 3\n", "rollout: must be a section (key: value), not 3"),
        ("rollout: [1]\n", "rollout: must be a section (key: value), not a list"),
        ("harness: tiny-agent\n", "harness: must be a mapping (name: value), not 'tiny-agent'"),
        ("harness: {tiny-agent: much}\n", "harness.tiny-agent: must be a number, not 'much' (bad.yaml line 13)"),
        ("images: {packages: git}\n", "images.packages: must be a list, not 'git'"),
        ("sandbox: {accept_unenforced_limits: 1}\n", "must be true or false, not 1"),
        ("policy2: {model: x}\n", "did you mean policy?"),
    ],
)
def test_unknown_keys_and_wrong_types_are_refused_with_their_place(config_file, text, expected):
    error = refused(config_file(LEARN + text, "bad.yaml"))
    assert expected in str(error)
    assert str(error).startswith("config: ")


def test_the_sketch_s_own_example(config_file):
    text = LEARN.replace("objective: {name", "objectve: {name")
    expected = "config: train.objectve: no such key; did you mean train.objective? (learn.yaml line 12)"
    assert str(refused(config_file(text))) == expected


def test_an_item_of_a_list_is_named_by_its_number(config_file):
    text = LEARN.replace("      count: 128", "      cuont: 128")
    expected = "tasks.eval[0].cuont: no such key; did you mean tasks.eval[0].count? (learn.yaml line 9)"
    assert expected in str(refused(config_file(text)))


def test_all_that_is_wrong_is_told_at_once(config_file):
    error = refused(config_file(LEARN + "rollout: {max_turn: 3, temperature: hot}\n"))
    assert "max_turn" in error.message
    assert "rollout.temperature: must be a number" in error.hint


def test_mandatory_values(config_file):
    error = refused(config_file("run: {seed: 1}\n"))
    assert "policy.model: needs a value" in str(error)
    assert "run.name: needs a value" in error.hint
    source = LEARN.replace("[{source: family, name", "[{name")
    assert "tasks.train[0].source: needs a value" in str(refused(config_file(source)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run: {name: a\n", "not YAML"),
        ("run: {name: a}\nrun: {name: b}\n", "run: given twice (bad.yaml lines 1 and 2)"),
        ("- a\n", "bad.yaml line 1: a config is a mapping"),
        ("{[a]: b}\n", "a key must be a plain word"),
        ("run: {name: !!python/object:os.system x}\n", "not YAML"),
        ("run: {name: '${nothing.there}'}\npolicy: {model: m}\n", "nothing.there"),
    ],
)
def test_what_is_no_config_is_refused(config_file, text, expected):
    assert expected in str(refused(config_file(text, "bad.yaml")))


def test_a_missing_file_is_told_with_what_to_do(tmp_path):
    error = refused(tmp_path / "none.yaml")
    assert "no such file" in str(error) and "lego init" in error.hint


def test_a_file_that_is_not_text(config_file):
    path = config_file()
    path.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in str(refused(path))


@pytest.mark.parametrize(
    "override",
    [
        "rollout.max_turns",
        "=3",
        "tasks.eval[4].seed=1",
        "tasks.eval.x.seed=1",
        "run.name.first=1",
        "run.seed=[",
        "trian.lr=1",
    ],
)
def test_bad_overrides_are_refused(config_file, override):
    error = refused(config_file(), override)
    assert "command line" in str(error) or "override" in str(error) or "not YAML" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "engine: {api_key: abc}\n",
        "openai_api_key: abc\n",
        "engine: {token: abc}\n",
        "policy: {model: m, name: sk-proj-0123456789abcdef0123}\n",
        "images: {base: 'registry:https://me:hunter2@example.org/base'}\n",
        "images: {base_map: {a: ghp_0123456789abcdef0123456789}}\n",
        "tasks: {train: [{source: family, name: f, count: 1, options: {hf_token: abc}}]}\n",
        "tasks: {train: [{source: family, name: f, count: 1, options: {deep: [{password: abc}]}}]}\n",
    ],
)
def test_secrets_are_refused_and_not_repeated(config_file, text):
    error = refused(config_file("run: {name: a}\n" + text))
    assert "secret" in str(error) and "environment" in str(error)
    for secret in ("abc", "hunter2", "0123456789"):
        assert secret not in str(error) + error.hint


def test_a_secret_does_not_come_in_through_the_environment(config_file, monkeypatch):
    monkeypatch.setenv("MY_KEY", "hf_0123456789abcdefghij")
    error = refused(config_file(), "policy.name=${oc.env:MY_KEY}")
    assert "secret" in str(error) and "0123456789" not in str(error)


def test_settings_about_tokens_are_no_secrets(config_file):
    overrides = ["rollout.max_total_tokens=5000", "retention.tokens=drop", "train.correction.token_tis=3"]
    assert load(config_file(), overrides).config.retention.tokens == "drop"


def test_task_folders_count_from_the_current_folder_and_shipped_ones_are_found_anywhere(config_file):
    own = load(config_file(), ["tasks.train=[{source: harbor, path: mine}]"]).config.tasks.train[0]
    assert own.path == "mine"
    shipped = load("configs/basics.yaml").config.tasks.train[0]
    assert Path(shipped.path).is_absolute() and Path(shipped.path).is_dir()
