"""What the documentation says is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stages.cli import COMMANDS
from tests.update_cli_docs import DOC, MARKER, page

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*/README.md"))]


def test_the_commands_are_documented_as_they_are() -> None:
    # In a process of its own: a command that another test has run alone keeps that run's help options.
    code = "from tests.update_cli_docs import DOC, page; print(page(DOC.read_text(encoding='utf-8')), end='')"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    assert DOC.read_text(encoding="utf-8") == printed, (
        "docs/cli.md is out of date: run `python -m tests.update_cli_docs`"
    )


def test_every_command_has_its_section() -> None:
    sections = re.findall(r"^## lego (\S+)$", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == list(COMMANDS)


def test_a_page_out_of_date_is_noticed() -> None:
    stale = f"# Title\n{MARKER}\n## lego\n"
    assert page(stale) != stale and page(stale).startswith(f"# Title\n{MARKER}")
    with pytest.raises(ValueError, match="marker"):
        page("# Title\n")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_a_page_names_are_there(path: Path) -> None:
    for file, name in set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", path.read_text(encoding="utf-8"))):
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name
