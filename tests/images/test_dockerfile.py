from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.images.dockerfile import canonical, instructions, rewrite

MAP = {"debian:bookworm": "localhost/base:1", "python": "localhost/py:2"}


@pytest.mark.parametrize("prefix", ["", "registry.example/library/", "library/"])
def test_every_spelling_of_an_official_name_is_replaced(prefix):
    assert rewrite(f"FROM {prefix}debian:bookworm\n", MAP).text == "FROM localhost/base:1\n"


def test_options_stage_names_and_case_stay():
    text = "from --platform=linux/amd64 python AS build\nRUN x\nFROM debian:bookworm\nCOPY --from=build /x /x\n"
    done = rewrite(text, MAP)
    assert done.text == (
        "from --platform=linux/amd64 localhost/py:2 AS build\nRUN x\nFROM localhost/base:1\nCOPY --from=build /x /x\n"
    )
    assert done.final_base == "localhost/base:1"


def test_an_unknown_image_and_scratch_stay():
    assert rewrite("FROM debian:bullseye\n", MAP).text == "FROM debian:bullseye\n"
    assert rewrite("FROM scratch\n", MAP).final_base == "scratch"


def test_global_args_are_expanded_to_find_the_image():
    done = rewrite("ARG SUITE=bookworm\nFROM debian:${SUITE}\n", MAP)
    assert done.text == "ARG SUITE=bookworm\nFROM localhost/base:1\n"
    assert rewrite("FROM debian:${SUITE:-bookworm}\n", MAP).final_base == "localhost/base:1"


def test_a_later_stage_inherits_base_and_user():
    done = rewrite("FROM debian:bookworm AS one\nUSER app\nFROM one\nRUN x\n", MAP)
    assert (done.final_base, done.final_user) == ("localhost/base:1", "app")
    assert rewrite("FROM debian:bookworm AS one\nUSER app\nFROM python\n", MAP).final_user == ""


def test_from_inside_other_text_is_not_an_instruction():
    inside = [
        "# FROM debian:bookworm",
        "RUN echo \\",
        "# a comment",
        "  FROM debian:bookworm",
        "RUN <<EOF",
        "FROM debian:bookworm",
        "EOF",
    ]
    text = "\n".join(["FROM python", *inside]) + "\n"
    done = rewrite(text, MAP)
    assert done.text == text.replace("FROM python", "FROM localhost/py:2")


def test_a_shift_is_no_here_document():
    done = rewrite("FROM python AS one\nRUN echo $((1<<N))\nFROM debian:bookworm\n", MAP)
    assert done.final_base == "localhost/base:1"


def test_no_from_is_an_error():
    with pytest.raises(ValueError, match="no FROM"):
        rewrite("RUN x\n", MAP)


@given(st.lists(st.text(alphabet="aFROM \\#x<", max_size=12), max_size=8))
def test_instructions_lose_no_line(lines):
    text = "\n".join(lines)
    assert [line for block in instructions(text) for line in (block.split("\n"))] == text.splitlines()


def test_canonical_names():
    assert canonical("python") == canonical("registry.example/library/python:latest") == "python:latest"
    assert canonical("localhost:5000/x") == "localhost:5000/x:latest"
    assert canonical("images.example/a/b@sha256:00") == "images.example/a/b@sha256:00"
