"""`lego export`: what is in each format, that others read it, and that no file is lost or left half written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from lego.errors import StoreError
from lego.export.files import write_jsonl, write_whole
from lego.rundb import calls, rounds, trials
from lego.rundb.store import Store
from stages import cli
from tests.run_fixture import SETTINGS, bash, begin, call, finish, verdict

Lego = Callable[..., tuple[int, str, str]]
TOOLS = [{"name": "bash", "description": "Run.", "parameters": {"type": "object", "properties": {}}}]


def _record(store: Store, trial: int) -> None:
    """Two turns of one conversation, then one that begins anew from the first reply (a fork)."""
    first = bash("cat window.py", "Look.")
    more = {"tools_digest": "d", "tools": json.dumps(TOOLS)}
    begun = [{"role": "system", "content": "Fix."}, {"role": "user", "content": "window.py é"}]
    result = {"role": "tool", "content": "out", "tool_call_id": "c"}
    calls.record(store, trial, call(1, first, begun) | more)
    last = {"role": "assistant", "content": "", "tool_calls": [{"id": "d", "name": "bash", "arguments": "{not json"}]}
    calls.record(
        store, trial,
        call(2, last, [result]) | more | {"shared": 15, "messages": {"kept": 3, "of": 1, "new": [result]}},
    )  # fmt: skip
    retried = {"role": "user", "content": "again"}
    calls.record(
        store, trial,
        call(3, {"role": "assistant", "content": "Done"}, [retried]) | more
        | {"parent_seq": 1, "shared": 15, "messages": {"kept": 3, "of": 1, "new": [retried]}},
    )  # fmt: skip


@pytest.fixture
def lego(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lego:
    """A run of one training round: of its four trials the first two are solved (the second tampered), one is not, and
    one is not done."""
    (tmp_path / "lego.yaml").write_text("run: {name: demo, dir: .}\npolicy: {model: tiny}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEGO_CONFIG", raising=False)
    store = begin(tmp_path)
    round_ = rounds.open_round(
        store, "train", ordinal=1, policy_version=0, tasks=[("off-by-one-0000", "tiny-agent")], samples=4,
        settings={**SETTINGS, "temperature": 0.7},
    )  # fmt: skip
    for reward, tampered in ((1.0, False), (1.0, True), (0.0, False)):
        trial = trials.claim(store, round_.id)
        assert trial is not None
        _record(store, trial.id)
        finish(store, trial)
        verdict(store, trial.id, reward, tampered=tampered)
    store.close()

    def run(*args: str) -> tuple[int, str, str]:
        code = cli.run(args)
        return code, *capsys.readouterr()

    return run


def _rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_every_sampled_token_stands_once_in_the_tokens_format(lego: Lego) -> None:
    code, out, _ = lego("export", "--json")
    assert code == 0 and json.loads(out)["rows"] == 6 and json.loads(out)["trials"] == 3
    one, other = _rows("demo/tokens.jsonl")[:2]
    assert (one["trial"], one["segment"], other["segment"], one["segments"]) == (1, 0, 1, 2)
    assert sum(one["mask"]) + sum(other["mask"]) == 3 * 12
    for row in (one, other):
        assert len(row["ids"]) == len(row["mask"]) == len(row["logprobs"]) == len(row["calls"])
        assert [v for v, m in zip(row["logprobs"], row["mask"], strict=True) if m] == [-0.25] * sum(row["mask"])
        assert row["temperature"] == 0.7  # what the log-probs are at
        assert row["reward"] == 1.0 and row["solved"] and not row["tampered"] and row["tools"] == TOOLS
    assert set(one["calls"]) == {-1, 1, 2} and set(other["calls"]) == {-1, 3}
    assert [m["role"] for m in one["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert [m["role"] for m in other["messages"]] == ["system", "user", "assistant", "user", "assistant"]


def test_only_what_was_asked_for(lego: Lego) -> None:
    def found(*args: str) -> list[int]:
        assert lego("export", "--force", *args)[0] == 0
        return [row["trial"] for row in _rows("demo/tokens.jsonl")]

    assert found() == [1, 1, 2, 2, 3, 3]
    assert found("--solved") == [1, 1]  # whoever tampered solved nothing
    assert found("--split", "train", "--round", "1", "--harness", "tiny-agent") == [1, 1, 2, 2, 3, 3]
    for nothing in (("--split", "eval"), ("--round", "2"), ("--harness", "codex")):
        code, _, err = lego("export", "--force", *nothing)
        assert code == 2 and "no finished trial fits" in err


def test_parquet_holds_the_same(lego: Lego) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert lego("export")[0] == 0 and lego("export", "-o", "t.parquet")[0] == 0
    for row, same in zip(parquet.read_table("t.parquet").to_pylist(), _rows("demo/tokens.jsonl"), strict=True):
        assert json.loads(row.pop("messages")) == same.pop("messages")
        assert json.loads(row.pop("tools")) == same.pop("tools")
        assert np.array_equal(row.pop("logprobs"), np.float32(same.pop("logprobs"))) and row == same
    assert lego("export", "--format", "chat", "-o", "c.parquet")[0] == 2
    assert lego("export", "-o", "c.csv")[0] == 2


def test_trl_reads_the_chat_format(lego: Lego) -> None:
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    assert lego("export", "--format", "chat", "--solved", "-o", "chat.jsonl")[0] == 0
    loaded = datasets.load_dataset("json", data_files="chat.jsonl", split="train", cache_dir="cache")
    assert len(loaded) == 2 and trl.data_utils.is_conversational(loaded[0])
    assert [m["role"] for m in loaded[0]["prompt"]] == ["system", "user"]
    assert [m["role"] for m in loaded[0]["completion"]] == ["assistant", "tool", "assistant"]
    # The second segment owns its last reply alone: the first is context, and so stands in the prompt.
    assert [m["content"] for m in loaded[1]["completion"]] == ["Done"]
    called = loaded[0]["completion"][0]["tool_calls"][0]
    assert called["type"] == "function" and json.loads(called["function"]["arguments"]) == {"command": "cat window.py"}
    assert loaded[0]["tools"][0]["function"]["name"] == "bash" and loaded[0]["reward"] == 1.0


def _object(required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": required | optional, "required": list(required),
            "additionalProperties": False}  # fmt: skip


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


TEXT, NUMBER, ANY = {"type": "string"}, {"type": "integer"}, {"type": "object"}
STEP = _object(
    {"step_id": NUMBER, "source": {"enum": ["system", "user", "agent"]}, "message": TEXT},
    {
        "timestamp": TEXT, "model_name": TEXT, "reasoning_content": TEXT, "is_copied_context": {"type": "boolean"},
        "llm_call_count": NUMBER, "extra": ANY,
        "tool_calls": _list(_object({"tool_call_id": TEXT, "function_name": TEXT, "arguments": ANY}, {"extra": ANY})),
        "observation": _object({"results": _list(_object({}, {"source_call_id": TEXT, "content": TEXT}))}, {}),
        "metrics": _object({}, {"prompt_tokens": NUMBER, "completion_tokens": NUMBER,
                                "completion_token_ids": _list(NUMBER), "logprobs": _list({"type": "number"})}),
    },
)  # fmt: skip
TRAJECTORY = _object(
    {
        "schema_version": {"enum": ["ATIF-v1.7"]},
        "agent": _object({"name": TEXT, "version": TEXT}, {"model_name": TEXT, "tool_definitions": _list(ANY)}),
        "steps": _list(STEP) | {"minItems": 1},
    },
    {
        "session_id": TEXT, "trajectory_id": TEXT, "notes": TEXT, "extra": ANY,
        "final_metrics": _object({}, {"total_prompt_tokens": NUMBER, "total_completion_tokens": NUMBER,
                                      "total_steps": NUMBER}),
    },
)  # fmt: skip
"""ATIF 1.7 as Harbor documents it, so far as we use it: keys it does not name are refused there too."""


def test_atif_is_what_harbor_takes(lego: Lego) -> None:
    assert lego("export", "--format", "atif")[0] == 0
    rows = _rows("demo/atif.jsonl")
    for row in rows:
        jsonschema.validate(row, TRAJECTORY)
        assert [step["step_id"] for step in row["steps"]] == list(range(1, len(row["steps"]) + 1))
        for step in row["steps"]:
            asked = {one["tool_call_id"] for one in step.get("tool_calls", ())}
            assert {r["source_call_id"] for r in step.get("observation", {}).get("results", ())} <= asked
            if step["source"] != "agent":
                assert not step.keys() & {"model_name", "reasoning_content", "tool_calls", "metrics"}
    first, second = rows[:2]
    assert first["session_id"] == second["session_id"] and first["trajectory_id"] != second["trajectory_id"]
    assert first["steps"][2]["observation"] == {"results": [{"source_call_id": "c", "content": "out"}]}
    assert first["steps"][3]["tool_calls"][0]["extra"] == {"written": "{not json"}
    assert second["steps"][2]["is_copied_context"] and "metrics" not in second["steps"][2]
    assert second["steps"][-1]["metrics"]["completion_token_ids"] == list(range(12))
    assert second["steps"][-1]["metrics"]["logprobs"] == [-0.25] * 12


def test_a_file_that_is_there_stays_unless_told(lego: Lego) -> None:
    Path("mine.jsonl").write_text("mine")
    code, _, err = lego("export", "-o", "mine.jsonl")
    assert code == 2 and "is there already" in err and "--force" in err and Path("mine.jsonl").read_text() == "mine"
    assert lego("export", "-o", "mine.jsonl", "--force")[0] == 0 and len(_rows("mine.jsonl")) == 6
    code, _, err = lego("export", "-o", "nowhere/x.jsonl")
    assert code == 2 and "cannot write nowhere/x.jsonl" in err


def test_what_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "x.jsonl"

    def rows():
        yield {"a": 1}
        target.write_text("another's")
        yield {"a": 2}

    with pytest.raises(StoreError, match="is there already"):
        write_whole(target, write_jsonl, rows(), force=False)
    assert target.read_text() == "another's"

    def broken():
        yield {"a": 1}
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(target, write_jsonl, broken(), force=True)
    assert target.read_text() == "another's" and list(tmp_path.iterdir()) == [target]


def test_removed_token_data_are_said(lego: Lego) -> None:
    store = Store.open(Path("demo/run.db"))
    store.execute("UPDATE calls SET completion_ids = NULL WHERE trial_id = 1")
    code, _, err = lego("export")
    assert code == 0 and "1 trials left out: their token data was removed" in err
    store.execute("UPDATE calls SET completion_ids = NULL")
    code, _, err = lego("export", "--force")
    assert code == 2 and "none of 3 trials has tokens" in err and len(_rows("demo/tokens.jsonl")) == 4
    store.close()
