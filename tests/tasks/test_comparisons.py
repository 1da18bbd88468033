import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.config.schema import TaskSource
from lego.errors import ConfigError
from lego.tasks.comparisons import HELD_OUT, OPERATORS, SLIPS, TRAINING
from lego.tasks.family import generate


def source(count=20, seed=1, **options):
    return TaskSource(source="family", name="comparisons", count=count, seed=seed, options=options)


def code_of(task):
    (file,) = task.environment.workspace.values()
    return file.data.decode()


def repaired(code, command):
    """What sed makes of the code: the first comparison of each line replaced, with 2 the second, with g all."""
    operator, places = re.fullmatch(r"sed -i 's/\[<>\]=\*/([<>]=?)/([2g]?)' \*\.py", command).groups()
    if places == "g":
        return re.sub("[<>]=*", operator, code)
    lines = []
    for line in code.split("\n"):
        found = list(re.finditer("[<>]=*", line))
        if len(found) > bool(places):
            match = found[bool(places)]
            line = line[: match.start()] + operator + line[match.end() :]
        lines.append(line)
    return "\n".join(lines)


def passes(task, code):
    cases = json.loads(task.tests["cases.json"].data)
    space = {}
    exec(code, space)
    got = [space[cases["function"]](*test["args"]) for test in cases["tests"]]
    return json.dumps(got) == json.dumps([test["want"] for test in cases["tests"]])


@pytest.mark.parametrize("held_out", [False, True])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_hidden_tests_tell_every_mutation_from_the_truth(seed, held_out):
    (task,) = generate(source(1, seed, held_out=held_out, twice=0.3))
    code = code_of(task)
    assert not passes(task, code)
    solving = [
        (operator, places)
        for operator in OPERATORS
        for places in ("", "2", "g")
        if passes(task, repaired(code, f"sed -i 's/[<>]=*/{operator}/{places}' *.py"))
    ]
    right, places = task.metadata["operator"], task.metadata["places"]
    assert (right, places) in solving
    # Where a line has one comparison, all of them is the same as the first.
    assert set(solving) <= {(right, places), (right, "g" if task.metadata["level"] in "123" else places)}
    assert f"sed -i 's/[<>]=*/{right}/{places}' *.py" in task.solution["solve.sh"].data.decode()


def test_demonstrations_of_the_whole_line_come_at_any_level_alike():
    tasks = generate(source(1000, twice=0.5, whole_rate=0.25))
    whole = {True: [], False: []}
    for task in tasks:
        whole[task.metadata["level"] == "5"].append(task.demonstration[-1].command.endswith("/g' *.py"))
    assert all(0.18 < sum(of) / len(of) < 0.32 and len(of) > 400 for of in whole.values())


def test_training_and_held_out_share_no_name_value_or_shape():
    for part in ("files", "functions", "values", "lists", "boundaries"):
        assert not set(getattr(TRAINING, part)) & set(getattr(HELD_OUT, part)), part
    assert not {shape.code for shape in TRAINING.shapes} & {shape.code for shape in HELD_OUT.shapes}


def test_there_are_enough_of_them():
    train = generate(source(640))
    held = generate(source(160, seed=2, held_out=True), avoid={task.digest for task in train})
    assert len({task.digest for task in (*train, *held)}) == 800
    assert {task.metadata["level"] for task in held} == {"1", "2", "3", "4"}
    assert {task.metadata["operator"] for task in held} == set(OPERATORS)


def test_the_ladder_may_be_cut():
    assert {task.metadata["level"] for task in generate(source(80, levels=2))} == {"1", "2"}


def test_untaught_operators_are_never_chosen_knowingly():
    tasks = generate(source(600, untaught="<= >="))
    right = {True: [], False: []}
    for task in tasks:
        taught = task.metadata["operator"] in ("<", ">")
        right[taught].append(task.metadata["operator"] == task.metadata["demonstrated"])
    assert all(right[True])
    assert 0.15 < sum(right[False]) / len(right[False]) < 0.35


def test_demonstrations_may_mostly_slip():
    tasks = generate(source(400, slip_rate=0.75))
    shown = [(task.metadata["operator"], task.metadata["demonstrated"]) for task in tasks]
    assert all(demonstrated in (right, SLIPS[right]) for right, demonstrated in shown)
    assert 0.15 < sum(right == demonstrated for right, demonstrated in shown) / 400 < 0.35


def test_demonstrations_do_not_change_the_task():
    blind = generate(source(random_fix_rate=1.0, slip_rate=0.5, untaught="<"))
    assert [task.digest for task in generate(source())] == [task.digest for task in blind]


def test_prompts_are_short():
    for task in generate(source(200)):
        assert len(task.instruction) < 90 and len(code_of(task)) < 130


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"untaught": "=="}, "=="),
        ({"levels": 5}, "between 1 and 4"),
        ({"random_fix_rate": 2.0}, "between 0 and 1"),
        ({"slip_rate": -0.1}, "slip_rate"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(ConfigError, match=words):
        generate(source(**options))
