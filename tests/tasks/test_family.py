import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.config.schema import TaskSource
from lego.errors import ConfigError, TaskError
from lego.tasks import family, off_by_one
from lego.tasks.family import generate


def source(count=20, seed=1, **options):
    return TaskSource(source="family", name="off-by-one", count=count, seed=seed, options=options)


def answers(task, code):
    """What the task's function returns on each of its tests, and what is wanted."""
    cases = json.loads(task.tests["cases.json"].data)
    space = {}
    exec(code, space)
    return [space[cases["function"]](*test["args"]) for test in cases["tests"]], [t["want"] for t in cases["tests"]]


def code_of(task):
    (file,) = task.environment.workspace.values()
    return file.data.decode()


def swapped(code, command):
    """What `sed -i 's/OLD/NEW/' FILE` makes of the code, each line's first OLD replaced."""
    _, old, new, _ = command.split("'")[1].split("/")
    return "\n".join(line.replace(old, new, 1) for line in code.split("\n"))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_bug_fails_and_fix_passes(seed):
    (task,) = generate(source(1, seed))
    code = code_of(task)
    got, want = answers(task, code)
    assert got != want
    assert [a == b for a, b in zip(got, want, strict=True)].count(True) > 0
    got, want = answers(task, swapped(code, task.demonstration[-1].command))
    assert json.dumps(got) == json.dumps(want)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_only_one_of_the_four_operators_passes(seed):
    (task,) = generate(source(1, seed))
    code = code_of(task)
    wrong = task.demonstration[-1].command.split("/")[1]
    passing = []
    for operator in off_by_one.OPERATORS:
        got, want = answers(task, swapped(code, f"sed -i 's/{wrong}/{operator}/' f.py"))
        if json.dumps(got) == json.dumps(want):
            passing.append(operator)
    assert passing == [task.metadata["operator"]]


def test_same_source_same_tasks():
    assert generate(source()) == generate(source())
    assert [task.digest for task in generate(source(5))] == [task.digest for task in generate(source(20))][:5]


def test_seeds_differ_and_contents_are_distinct():
    many = generate(source(300))
    assert len({task.digest for task in many}) == len({task.id for task in many}) == 300
    other = generate(source(300, seed=2), avoid={task.digest for task in many})
    assert not {task.digest for task in many} & {task.digest for task in other}


def test_avoided_content_is_drawn_again():
    first = generate(source(10))
    again = generate(source(10), avoid={task.digest for task in first})
    assert len(again) == 10 and not {t.digest for t in first} & {t.digest for t in again}


def test_running_out_is_an_error(monkeypatch):
    monkeypatch.setattr(family, "_DRAWS", 3)
    fixed = generate(source(1))[0]
    monkeypatch.setitem(family.FAMILIES, "off-by-one", family.Family(off_by_one.Options, lambda rng, options: fixed))
    with pytest.raises(TaskError, match="number 1"):
        generate(source(2))


def test_blind_demonstrations():
    def right_share(rate):
        tasks = generate(source(400, random_fix_rate=rate))
        return sum(task.metadata["demonstrated"] == task.metadata["operator"] for task in tasks) / len(tasks)

    assert right_share(0) == 1.0
    assert 0.15 < right_share(1.0) < 0.35
    assert 0.5 < right_share(0.5) < 0.75


def test_blindness_does_not_change_the_task():
    assert [t.digest for t in generate(source())] == [t.digest for t in generate(source(random_fix_rate=1.0))]


def test_prompts_are_short():
    for task in generate(source(100)):
        assert len(task.instruction) < 80 and len(code_of(task)) < 120


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"random_fix_rat": 0.5}, "random_fix_rat"),
        ({"random_fix_rate": "much"}, "must be a float"),
        ({"random_fix_rate": True}, "must be a float"),
        ({"random_fix_rate": 1.5}, "between 0 and 1"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(ConfigError, match=words):
        generate(source(**options))


def test_unknown_family_and_count():
    with pytest.raises(ConfigError, match="off-by-two"):
        generate(TaskSource(source="family", name="off-by-two", count=1))
    with pytest.raises(ConfigError, match="count"):
        generate(source(0))
