"""SWE-bench rows as tasks: an issue, the repository before its fix, and the tests that the fix turns green."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pathspec import GitIgnoreSpec
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from lego.errors import ConfigError, TaskError
from lego.tasks import swebench_env as env
from lego.tasks import swebench_recipes as recipes
from lego.tasks import swebench_rows as rows
from lego.tasks.harbor_words import in_words, options_error
from lego.tasks.reading import OnProblem, guarded, json_of, raised, text_of
from lego.tasks.swebench_patch import Touched, directives, touched
from lego.tasks.swebench_rows import Row, Text
from lego.tasks.task import DEFAULT_PROTECTED, Canary, DemoStep, Environment, File, Grading, Task, Tree, exact

_TIMEOUT = 1800.0
"""Seconds of a verification, as the published harness has it."""
_PARSERS = {
    "django/django": "django", "matplotlib/matplotlib": "matplotlib", "mwaskom/seaborn": "seaborn",
    "sympy/sympy": "sympy", "psf/requests": "pytest_options", "pydicom/pydicom": "pytest_options",
    "pylint-dev/pylint": "pytest_options", "astropy/astropy": "pytest_v2", "scikit-learn/scikit-learn": "pytest_v2",
    "sphinx-doc/sphinx": "pytest_v2",
}  # fmt: skip
"""Repository -> the parser that the published benchmark reads its logs with; `pytest` reads the others."""
_CANARY = 'def test_{word}():\n    assert False, "the canary must fail"\n'
_DJANGO_CANARY = (
    "from django.test import SimpleTestCase\n\n\nclass Canary(SimpleTestCase):\n"
    '    def test_{word}(self):\n        self.fail("the canary must fail")\n'
)
_TEST_SH = """\
#!/bin/bash
# The published way: the hidden tests are patched in and run, and the log is read by someone else.
word=$LEGO_WORD canary=$LEGO_CANARY
unset LEGO_WORD LEGO_CANARY
cd {app} || exit 1
{patch}{setup}echo ">>>>> Start Test Output $word"
set -x
{command} $canary
{{ rc=$?; set +x; }} 2>/dev/null
echo ">>>>> End Test Output $word"
exit $rc
"""
_APPLY = "git apply --whitespace=nowarn {reverse}{path} || {{ echo '>>>>> Patch Apply Failed'; exit 1; }}\n"
_SOLVE_SH = "#!/bin/sh\nset -e\ncd {app}\ngit apply --whitespace=nowarn {reverse}/solution/gold.patch\n"


def _url(value: str) -> str:
    strange = set(re.findall(r"\{[^}]*\}", value)) - {"{repo}"}
    if strange or re.search(r"\s", value):
        raise ValueError(f"{value!r} is not an address in which {{repo}} alone stands for something")
    return value


class Options(BaseModel):
    """`recipes`: a JSONL of pinned environments; only rows that it names are taken. `mirror`: a folder of git mirrors,
    OWNER/NAME.git or OWNER__NAME.git. `git`: where to clone from otherwise. `bases`: Python version -> image.
    `exclusions`: a JSON file, instance -> test -> why it is not asked for."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    recipes: str = ""
    mirror: str = ""
    git: Annotated[str, AfterValidator(_url)] = "https://github.com/{repo}"
    bases: dict[Text, str] = {}
    exclusions: str = ""


@dataclass(frozen=True)
class _Recipe:
    """How a row's tests are run, and in what: a Dockerfile and the files it copies."""

    context: Tree
    command: str
    files: tuple[str, ...]
    parser: str
    setup: tuple[str, ...] = ()
    packages: str = ""


def load(path: Path, options: Mapping[str, Any], *, count: int = 0, on_problem: OnProblem | None = None) -> list[Task]:
    """The tasks of a file of rows, the first `count` of them (0 = all).

    A row that makes no task is told to `on_problem` and left out; without it its TaskError is raised. Raises
    ConfigError for an unknown option.
    """
    tell = on_problem or raised
    chosen = _read_options(options)
    pinned = recipes.read(Path(chosen.recipes), tell) if chosen.recipes else None
    excluded = _exclusions(Path(chosen.exclusions)) if chosen.exclusions else {}
    tasks: list[Task] = []
    taken = 0
    for where, raw in rows.read(path, tell):
        if count and len(tasks) == count:
            break
        if pinned is not None and str(raw.get("instance_id")) not in pinned:
            continue
        taken += 1
        try:
            with guarded(where):
                row = rows.parse(raw, where)
                recipe = recipes.parse(pinned[row.id]) if pinned is not None else None
                tasks.append(make(row, chosen, recipe, excluded.get(row.id, {}), where))
        except TaskError as error:
            tell(error)
    if not taken:
        why = f"has no row that {chosen.recipes} has a recipe for" if pinned is not None else "has no rows"
        raise TaskError(f"{path} {why}", fault="user")
    return tasks


def make(row: Row, options: Options, pinned: recipes.Recipe | None, excluded: Mapping[str, str], where: str) -> Task:
    """One row as a task. `pinned`: its own recipe. Raises TaskError where nothing makes its image."""
    tests = touched(row.test_patch, f"{where}: test_patch") if row.test_patch else Touched(frozenset(), ())
    gold = touched(row.patch, f"{where}: patch") if row.patch else Touched(frozenset(), ())
    recipe = _pinned(row, pinned, options) if pinned else _recipe(row, tests, options, where)
    grading = _grading(row, recipe, pinned, excluded, where)
    solution: Tree = {}
    reverse = "-R " if row.introduces else ""
    if row.patch:
        script = _SOLVE_SH.format(app=env.APP, reverse=reverse)
        solution = {"solve.sh": File(script.encode(), 0o755), "gold.patch": File(row.patch)}
    task = Task(
        id=row.id,
        digest="",
        instruction=row.problem,
        environment=Environment(context=recipe.context, workdir=env.APP, roots=(env.APP,), build_timeout=_TIMEOUT),
        tests=_tests(row, recipe),
        solution=solution,
        verifier_timeout=_TIMEOUT,
        protected=_protected(tests, gold, {*row.hidden, *grading.test_files}),
        demonstration=_demonstration(row, reverse),
        metadata={"repo": row.repo, "version": row.version, "packages": recipe.packages},
        where=where,
        grading=grading,
    )
    return replace(task, digest=task.content_digest())


def _pinned(row: Row, pinned: recipes.Recipe, options: Options) -> _Recipe:
    source = env.Sdist(pinned.sdist, pinned.sdist_file, pinned.sdist_sha256)
    packages = env.Packages(pinned.python, pinned.pip_packages, pins=True)
    text = env.dockerfile(packages, source, [pinned.install], (), options.bases)
    return _Recipe(
        {"Dockerfile": File(text.encode())},
        pinned.test_cmd,
        pinned.test_files,
        _PARSERS.get(row.repo, "pytest"),
        packages=f"python {pinned.python}, {len(pinned.pip_packages)} packages",
    )


def _recipe(row: Row, tests: Touched, options: Options, where: str) -> _Recipe:
    spec = row.spec
    if not spec and not row.introduces:
        spec = _published_unless_image(row, where)
    context: dict[str, File] = {}
    if row.image:
        bug = "bug.patch" if row.introduces else ""
        if bug:
            context[bug] = File(row.patch)
        text = env.on_image(row.image, row.remove, bug)
    elif row.dockerfile:
        text = row.dockerfile
    else:
        source = _source(row, options, context, where)
        text = env.from_spec(spec, source, row.version, options.bases, where)
    context["Dockerfile"] = File(text.encode())
    *first, command = env.texts(spec, "test_cmd", where) or ["pytest -rA"]
    setup = [*env.texts(spec, "eval_commands", where), *first]
    parser = str(spec.get("log_parser") or ("swesmith" if row.introduces else _PARSERS.get(row.repo, "pytest")))
    files = tuple(directives(tests, row.repo)) or (() if row.hidden else _files_of(row))
    return _Recipe(context, command, files, parser.removeprefix("parse_log_"), tuple(setup))


def _published_unless_image(row: Row, where: str) -> Mapping[str, Any]:
    try:
        return env.published(row.repo, row.version, where)
    except TaskError:
        # An image has its environment in it; how tests are run there has a default.
        if row.image or row.dockerfile:
            return {}
        raise


def _source(row: Row, options: Options, context: dict[str, File], where: str) -> env.Source:
    if not row.base_commit:
        raise TaskError(f"{where}: neither a base_commit nor an image: nothing says what the repository is")
    if not options.mirror:
        return env.GitUrl(options.git.replace("{repo}", row.repo), row.base_commit)
    folder = Path(options.mirror)
    names = (f"{row.repo}.git", row.repo, f"{row.repo.replace('/', '__')}.git", row.repo.replace("/", "__"))
    mirror = next((folder / name for name in names if (folder / name).is_dir()), None)
    if mirror is None:
        raise TaskError(f"{where}: {folder} has no mirror of {row.repo}", hint=f"looked for {', '.join(names)}")
    done = subprocess.run(
        ["git", "-C", str(mirror), "-c", "tar.umask=022", "archive", "--format=tar", row.base_commit],
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["git failed"]
        raise TaskError(f"{where}: {mirror} does not give commit {row.base_commit}: {said[-1][:200]}")
    context[env.ARCHIVE] = File(done.stdout)
    return env.Archive()


def _grading(
    row: Row, recipe: _Recipe, pinned: recipes.Recipe | None, excluded: Mapping[str, str], where: str
) -> Grading:
    """`excluded` tests, and those that a recipe excludes, are not asked for."""
    known = dict(excluded)
    if pinned:
        known |= dict.fromkeys(pinned.excluded, "does not pass with the solution in this environment")
    asked = {name: why for name, why in known.items() if name in (*row.fail_to_pass, *row.pass_to_pass)}
    keep = [tuple(name for name in names if name not in asked) for names in (row.fail_to_pass, row.pass_to_pass)]
    if not keep[0] and not keep[1]:
        raise TaskError(f"{where}: no named test is left to ask for")
    if row.fail_to_pass and not keep[0]:
        raise TaskError(f"{where}: every test that the fix should turn green is excluded")
    return Grading("swebench", keep[0], keep[1], asked, recipe.parser, _canary(recipe))


def _canary(recipe: _Recipe) -> Canary | None:
    """Beside the first test file, where the command is told of files by name."""
    if not recipe.files:
        return None
    first = recipe.files[0]
    if recipe.parser == "django":
        module = ".".join([*first.split(".")[:-1], "test_{word}"])
        return Canary(f"{env.APP}/tests/{module.replace('.', '/')}.py", module, _DJANGO_CANARY)
    if not first.endswith(".py"):
        return None
    path = "/".join([*next((one for one in recipe.files if _is_test(one)), first).split("/")[:-1], "test_{word}.py"])
    return Canary(f"{env.APP}/{path}", path, _CANARY)


def _is_test(path: str) -> bool:
    return path.rpartition("/")[2].startswith("test") and path.endswith(".py")


def _tests(row: Row, recipe: _Recipe) -> Tree:
    patch = _APPLY.format(reverse="", path="/tests/test.patch") if row.test_patch else ""
    if row.hidden:
        patch += f"cp -R /tests/app/. {env.APP}/ || exit 1\n"
    setup = "".join(f"{command}\n" for command in recipe.setup)
    command = " ".join([recipe.command, *map(_quoted, recipe.files)])
    script = _TEST_SH.format(app=env.APP, patch=patch, setup=setup, command=command)
    tests = {"test.sh": File(script.encode(), 0o755)}
    if row.test_patch:
        tests["test.patch"] = File(row.test_patch)
    return tests | {f"app/{path}": file for path, file in row.hidden.items()}


def _protected(tests: Touched, gold: Touched, run: set[str]) -> tuple[str, ...]:
    """The usual places, the hidden tests' own and the files that are `run`, less what the solution has to change."""
    patterns = (*DEFAULT_PROTECTED, *map(exact, sorted({*tests.all, *run})))
    spec = GitIgnoreSpec.from_lines(patterns)
    needed = sorted(path for path in gold.all - tests.all if spec.match_file(path))
    return (*patterns, *(f"!{exact(path)}" for path in needed))


def _demonstration(row: Row, reverse: str) -> tuple[DemoStep, ...]:
    if not row.patch or b"\nPATCH\n" in row.patch:
        return ()
    patch = row.patch.decode(errors="replace")
    return DemoStep("ls -A"), DemoStep(f"git apply --whitespace=nowarn {reverse}- <<'PATCH'\n{patch}PATCH")


def _files_of(row: Row) -> tuple[str, ...]:
    """The files in which pytest's named tests stand, where no test patch names any."""
    named = (*row.fail_to_pass, *row.pass_to_pass)
    return tuple(dict.fromkeys(name.partition("::")[0] for name in named if "::" in name))


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w./-]+", text) else "'" + text.replace("'", "'\\''") + "'"


def _exclusions(path: Path) -> dict[str, dict[str, str]]:
    try:
        return TypeAdapter(dict[str, dict[str, str]]).validate_python(json_of(text_of(path), path), strict=True)
    except (TaskError, ValidationError) as error:
        said = f"{path}: {in_words(error)}" if isinstance(error, ValidationError) else error.message
        raise ConfigError(f"tasks: exclusions: {said}",
                          hint='write {"instance": {"test id": "why it is not asked for"}}') from error  # fmt: skip


def _read_options(options: Mapping[str, Any]) -> Options:
    try:
        return Options.model_validate({key: value for key, value in options.items() if value is not None})
    except ValidationError as error:
        raise options_error("swebench", error, f"options: {', '.join(sorted(Options.model_fields))}") from error
