"""OpenAI Responses through the official client, for a policy that thinks: what it hears and what is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from lego.proxy.records import FinishedCall
from lego.proxy.session import Caps, Session
from lego.trajectory.arrays import Fate
from lego.trajectory.segments import segments
from tests.proxy.conftest import Open
from tests.proxy.families import DONE, END, LOOK, all_trained, continued, family, last, raw, said, sampled
from tests.proxy.parts import PlayEngine, Turn, client, transport
from tests.trajectory._support import TOOLS

USER: Any = {"role": "user", "content": "go"}
OFFERED: Any = [
    {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters, "strict": False}
    for t in TOOLS
]


async def ask(session: Session, given: Any, *, stream: bool, **more: Any) -> Any:
    """A Response, from the last event of a stream or not streamed."""
    fields: dict[str, Any] = {"model": "policy", "input": given, "tools": OFFERED, "store": False, **more}
    async with client(session) as api:
        if not stream:
            return await api.responses.create(**fields)
        events = [event async for event in await api.responses.create(**fields, stream=True)]
    assert events[0].type == "response.created"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events[-1].response


def echoed(reply: Any) -> list[dict[str, Any]]:
    return [item.model_dump(exclude_none=True) for item in reply.output]


def results(reply: Any, *order: int) -> list[dict[str, Any]]:
    ids = [item.call_id for item in reply.output if item.type == "function_call"]
    chosen = [ids[i] for i in order] if order else ids
    return [{"type": "function_call_output", "call_id": i, "output": f"r {i}"} for i in chosen]


both = pytest.mark.parametrize("stream", [False, True])


@both
async def test_thinking_text_and_parallel_calls_arrive_whole(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    engine = PlayEngine(LOOK)
    async with opened(engine, rendering=family()) as session:
        reply = await ask(session, "go", stream=stream)
    thinking, text, one, two = reply.output
    assert (thinking.content[0].text, reply.output_text, text.role) == ("Where is it?", "I look.", "assistant")
    assert (one.name, one.arguments) == ("bash", '{"command":  "ls\\u00e9", "n": 1}')
    assert (two.name, two.arguments, reply.status) == ("edit", '{"path": "a"}', "completed")
    prompt = len(engine.requests[0].prompt_ids)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (prompt, len(raw(LOOK)))
    assert rows[0].completion_ids.tolist() == raw(LOOK) and rows[0].dialect == "openai_responses"
    assert [c["id"] for c in last(rows)["tool_calls"]] == [one.call_id, two.call_id]
    assert rows[0].wishes == {}


async def test_the_clients_own_stream_helper_understands_the_events(opened: Open) -> None:
    async with (
        opened(PlayEngine(LOOK), rendering=family()) as session,
        client(session) as api,
        api.responses.stream(model="policy", input="go", tools=OFFERED) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds.count("response.function_call_arguments.delta") > 3 and kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]


def _same(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items


def _as_codex(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """No ids, no statuses, and of the thinking only what is sealed."""
    bare = [{k: v for k, v in item.items() if k not in ("id", "status")} for item in items]
    return [{**item, "content": None} if item["type"] == "reasoning" else item for item in bare]


def _reserialised(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for item in items:
        if item["type"] == "function_call":
            item["name"] = item["name"].title()
            item["arguments"] = json.dumps({"filled": None, **json.loads(item["arguments"])})
    return items


def _without_reasoning(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in items if item["type"] != "reasoning"]


@both
@pytest.mark.parametrize("change", [_same, _as_codex, _reserialised, _without_reasoning])
async def test_whatever_is_echoed_the_call_continues_with_every_sampled_token(
    opened: Open,
    rows: list[FinishedCall],
    stream: bool,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
) -> None:
    engine = PlayEngine(LOOK, DONE, said("Bye."))
    async with opened(engine, rendering=family()) as session:
        first = await ask(session, [USER], stream=stream, instructions="Be brief.")
        calls = change(echoed(first))
        one, two = results(first)
        history = [USER, *calls[:-1], two, calls[-1], one]
        second = await ask(session, history, stream=stream, instructions="Be brief.")
        history += [*change(echoed(second)), {"role": "developer", "content": "Five minutes left."}, USER]
        await ask(session, history, stream=stream, instructions="Be brief.")
        assert continued(engine, rows, 2) and continued(engine, rows, 3)
        assert all_trained(session, rows) and len(segments(session.tree).segments) == 1
    assert [row.drift for row in rows] == [{}, {}, {}]
    added = family().decode(rows[1].added_prompt_ids)
    assert added.index(str(one["output"])) < added.index(str(two["output"]))


async def test_sealed_thinking_is_back_where_history_is_rendered_afresh(opened: Open, rows: list[FinishedCall]) -> None:
    async with opened(PlayEngine(LOOK, DONE), rendering=family()) as session:
        first = await ask(session, [USER], stream=True)
        items = _as_codex(echoed(first))
        await ask(session, [{"role": "user", "content": "other"}, *items, *results(first)], stream=True)
    assert rows[1].messages["new"][1]["reasoning"] == "Where is it?"
    assert rows[1].drift["spliced"] == 1


@both
async def test_a_previous_response_stands_for_its_conversation(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    engine = PlayEngine(LOOK, DONE, DONE)
    async with opened(engine, rendering=family()) as session:
        first = await ask(session, "go", stream=stream, store=True, instructions="Be brief.")
        more = {"store": True, "previous_response_id": first.id, "instructions": "Be brief."}
        second = await ask(session, results(first, 1, 0), stream=stream, **more)
        assert second.previous_response_id == first.id
        await ask(session, "on", stream=stream, previous_response_id=second.id, instructions="Be brief.")
        assert continued(engine, rows, 2) and continued(engine, rows, 3) and all_trained(session, rows)
        with pytest.raises(openai.BadRequestError, match="not found") as refused:
            await ask(session, "on", stream=stream, previous_response_id="resp_" + "0" * 24)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")
    one, two = (c["id"] for c in rows[0].reply["tool_calls"])  # type: ignore[index]
    added = family().decode(rows[1].added_prompt_ids)
    assert added.index(f"r {one}") < added.index(f"r {two}")


async def test_a_kept_conversation_is_kept_once_however_often_it_is_sent(opened: Open) -> None:
    turns = 6
    async with opened(PlayEngine(*[DONE] * turns), rendering=family()) as session:
        history: list[Any] = [USER]
        for _ in range(turns):
            reply = await ask(session, history, stream=False, store=True)
            history += [*echoed(reply), USER]
        kept = [len(said.added) for said in session._said.values()]
    assert kept == [2] * turns, "what came last, and its reply"


async def test_silence_is_broken_by_comments_that_the_client_passes_over(opened: Open) -> None:
    turn = Turn("", raw=raw(DONE), gate=asyncio.Event())
    body = {"model": "policy", "input": "go", "stream": True}
    seen = b""
    options = {"keepalive": 0.01}
    async with (
        opened(PlayEngine(turn), rendering=family(), proxy=options) as session,
        transport(session.socket_path) as http,
        http.stream("POST", "/v1/responses", json=body, headers={"authorization": f"Bearer {session.token}"}) as said,
    ):
        async for data in said.aiter_raw():
            seen += data
            if seen.count(b": waiting\n\n") >= 2 and turn.gate is not None:
                turn.gate.set()
    assert seen.startswith(b"event: response.created\n") and seen.count(b"event: response.created\n") == 1
    assert b"event: response.completed\n" in seen


async def test_a_response_that_was_not_stored_is_no_previous_one(opened: Open) -> None:
    async with opened(PlayEngine(DONE), rendering=family()) as session:
        first = await ask(session, "go", stream=False, store=False)
        with pytest.raises(openai.BadRequestError, match="not found"):
            await ask(session, "on", stream=False, previous_response_id=first.id)


@both
@pytest.mark.parametrize("keep", [[0], [0, 1], [0, 1, 2], [3]])
async def test_a_partial_echo_is_a_fork(opened: Open, rows: list[FinishedCall], stream: bool, keep: list[int]) -> None:
    engine = PlayEngine(LOOK, DONE)
    async with opened(engine, rendering=family()) as session:
        first = await ask(session, [USER], stream=stream)
        items = [echoed(first)[i] for i in keep]
        done = [r for r in results(first) if r["call_id"] in [item.get("call_id") for item in items]]
        await ask(session, [USER, *items, *(done or [USER])], stream=stream)
        assert session.tree[1].fate is Fate.SUPERSEDED and all_trained(session, rows)
    assert rows[1].drift["how"] == "forked" and rows[1].shared < rows[0].prompt_tokens + len(raw(LOOK))


@both
async def test_malformed_arguments_reach_the_client_as_they_were_sampled(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    turn = sampled("<tool_call>", '{"name": "bash", "arguments": {"command": "l', "</tool_call>", END)
    engine = PlayEngine(turn, DONE)
    async with opened(engine, rendering=family()) as session:
        reply = await ask(session, [USER], stream=stream)
        await ask(session, [USER, *echoed(reply), *results(reply)], stream=stream)
        assert continued(engine, rows, 2) and all_trained(session, rows)
    assert reply.output[0].arguments == '{"command": "l' and last(rows[:1])["malformed"]


@both
async def test_a_reply_cut_by_length_is_incomplete_and_goes_on(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    engine = PlayEngine(DONE, DONE)
    async with opened(engine, rendering=family(), caps=Caps(9, len(raw(DONE)) - 4, 2000)) as session:
        reply = await ask(session, [USER], stream=stream)
        assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert reply.output[-1].status == "incomplete"
        await ask(session, [USER, *echoed(reply), USER], stream=stream)
        assert continued(engine, rows, 2) and all_trained(session, rows)


@both
async def test_an_overflow_has_openais_code(opened: Open, rows: list[FinishedCall], stream: bool) -> None:
    async with opened(PlayEngine(DONE), rendering=family(), caps=Caps(9, 50, 700)) as session:
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(session, "y " * 900, stream=stream)
    assert refused.value.code == "context_length_exceeded" and rows[0].reason == "context_overflow"


async def test_tokens_are_counted_as_a_call_would_have_them(opened: Open, rows: list[FinishedCall]) -> None:
    engine = PlayEngine(DONE)
    async with opened(engine, rendering=family()) as session, client(session) as api:
        counted = await api.responses.input_tokens.count(model="policy", input="go", tools=OFFERED)
        assert rows == []
        await ask(session, "go", stream=False)
    assert counted.input_tokens == len(engine.requests[0].prompt_ids)


async def test_engine_faults_are_worth_trying_again_before_and_inside_a_stream(
    opened: Open, rows: list[FinishedCall]
) -> None:
    early = Turn("", raw=raw(DONE), fail="CUDA is gone")
    late = Turn("", pieces=9, raw=raw(DONE), gated=4, fail="CUDA is gone")
    async with opened(PlayEngine(early, late), rendering=family()) as session:
        with pytest.raises(openai.InternalServerError, match="CUDA is gone"):
            await ask(session, "go", stream=True)
        failed = await ask(session, "go", stream=True)
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert [(row.kind, row.fate) for row in rows] == [("rejected", "abandoned"), ("main", "abandoned")]


async def test_a_cap_is_final_and_a_wrong_token_refused(opened: Open) -> None:
    options = {"park": 0.0}
    async with opened(PlayEngine(DONE), rendering=family(), caps=Caps(1, 200, 2000), proxy=options) as session:
        await ask(session, "go", stream=False)
        with pytest.raises(openai.BadRequestError, match="limit of 1 model calls"):
            await ask(session, "go", stream=True)
        async with client(session, "sk-wrong") as api:
            with pytest.raises(openai.AuthenticationError):
                await api.responses.create(model="policy", input="go")


@both
async def test_a_client_that_goes_away_cancels_and_its_reply_cannot_be_gone_on_from(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    at = len(raw(LOOK)) - 3
    turn = Turn("", pieces=len(raw(LOOK)), raw=raw(LOOK), gate=asyncio.Event(), gated=at)
    engine = PlayEngine(turn, DONE)
    async with opened(engine, rendering=family()) as session:
        async with client(session) as api:
            fields: dict[str, Any] = {"model": "policy", "input": [USER], "tools": OFFERED, "stream": stream}
            pending = asyncio.create_task(api.responses.create(**fields))
            await turn.reached.wait()
            if stream:
                await (await pending).close()
            else:
                pending.cancel()
        while not rows:
            await asyncio.sleep(0)
        assert engine.cancelled == 1
        one = last(rows)["tool_calls"][0]
        kept = {"type": "function_call", "call_id": one["id"], "name": one["name"], "arguments": one["arguments"]}
        out = {"type": "function_call_output", "call_id": one["id"], "output": "r"}
        await ask(session, [USER, kept, out], stream=stream)
        parts = segments(session.tree)
    assert (rows[0].fate, rows[0].finish, rows[0].status) == ("abandoned", "abort", 499)
    assert rows[1].drift["how"] == "forked" and parts.excluded == {"abandoned": at}
