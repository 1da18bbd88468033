from dataclasses import replace

from lego.config.schema import TaskSource
from lego.tasks.family import generate
from lego.tasks.task import File
from lego.tasks.validate import warnings

(SOUND,) = generate(TaskSource(source="family", name="off-by-one", count=1))


def test_sound():
    assert warnings(SOUND) == []


def test_no_solution():
    assert any("no solution" in one for one in warnings(replace(SOUND, solution={})))


def test_no_reward_written():
    assert any("reward" in one for one in warnings(replace(SOUND, tests={"test.sh": File(b"true\n")})))


def test_early_end():
    script = File(b"#!/bin/bash\nset -eu\npytest\necho 1 > /logs/verifier/reward.txt\n")
    assert any("set -e" in one for one in warnings(replace(SOUND, tests={"test.sh": script})))


def test_hidden_file_in_the_image():
    secret = SOUND.tests["cases.json"]
    context = {**SOUND.environment.context, "data/cases.json": secret}
    leaky = replace(SOUND, environment=replace(SOUND.environment, context=context))
    assert any("data/cases.json" in one for one in warnings(leaky))


def test_warnings_of_the_loader_are_kept():
    assert warnings(replace(SOUND, metadata={"warnings": "one; two"})) == ["one", "two"]
