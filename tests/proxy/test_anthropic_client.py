"""Anthropic Messages through the official client, for a policy that thinks: what it hears and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from lego.proxy.records import FinishedCall
from lego.proxy.rules import CallRules
from lego.proxy.session import Caps, Session
from lego.trajectory.arrays import Fate
from lego.trajectory.segments import segments
from tests.proxy.conftest import Open
from tests.proxy.families import DONE, END, LOOK, all_trained, continued, family, last, raw, said, sampled
from tests.proxy.parts import PlayEngine, Turn, transport
from tests.trajectory._support import TOOLS

USER: Any = {"role": "user", "content": "go"}
OFFERED: Any = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in TOOLS]


def api(session: Session, token: str | None = None) -> AsyncAnthropic:
    return AsyncAnthropic(
        base_url="http://lego",
        api_key=token or session.token,
        max_retries=0,
        http_client=transport(session.socket_path),
    )


async def ask(session: Session, messages: list[Any], *, stream: bool, **more: Any) -> Any:
    """A Message, streamed and put together by the client's own helper or not streamed."""
    fields: dict[str, Any] = {"model": "policy", "max_tokens": 200, "messages": messages, "tools": OFFERED, **more}
    async with api(session) as client:
        if not stream:
            return await client.messages.create(**fields)
        async with client.messages.stream(**fields) as events:
            return await events.get_final_message()


def echoed(reply: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}


def results(reply: Any, *order: int) -> dict[str, Any]:
    ids = [block.id for block in reply.content if block.type == "tool_use"]
    chosen = [ids[i] for i in order] if order else ids
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": f"r {i}"} for i in chosen]}


both = pytest.mark.parametrize("stream", [False, True])


@both
async def test_thinking_text_and_parallel_calls_arrive_whole(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    engine = PlayEngine(LOOK)
    async with opened(engine, rendering=family()) as session:
        reply = await ask(session, [USER], stream=stream)
    thinking, text, one, two = reply.content
    assert (thinking.type, thinking.thinking, text.text) == ("thinking", "Where is it?", "I look.")
    assert (one.name, one.input) == ("bash", {"command": "ls\u00e9", "n": 1})
    assert (two.name, two.input, reply.stop_reason) == ("edit", {"path": "a"}, "tool_use")
    assert one.id != two.id and reply.model == "policy" and reply.role == "assistant"
    prompt = len(engine.requests[0].prompt_ids)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (prompt, len(raw(LOOK)))
    assert rows[0].completion_ids.tolist() == raw(LOOK) and rows[0].dialect == "anthropic"
    assert [c["id"] for c in last(rows)["tool_calls"]] == [one.id, two.id]


async def test_pieces_come_as_they_are_sampled(opened: Open) -> None:
    gate = asyncio.Event()
    turn = Turn("", pieces=len(raw(LOOK)), raw=raw(LOOK), gate=gate, gated=len(raw(LOOK)) - 3)
    seen: list[Any] = []
    async with opened(PlayEngine(turn), rendering=family()) as session, api(session) as client:
        stream = await client.messages.create(
            model="policy",
            max_tokens=9,
            messages=[USER],
            tools=OFFERED,
            stream=True,
        )
        async for event in stream:
            seen.append(event)
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                gate.set()
    kinds = [e.delta.type for e in seen if e.type == "content_block_delta"]
    assert kinds.count("thinking_delta") > 2 and kinds.count("text_delta") > 1 and kinds.count("input_json_delta") > 4
    assert seen[0].type == "message_start" and seen[0].message.usage.input_tokens > 0
    assert seen[-1].type == "message_stop"


def _same(turn: dict[str, Any]) -> dict[str, Any]:
    return turn


def _cached(turn: dict[str, Any]) -> dict[str, Any]:
    turn["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return turn


def _reserialised(turn: dict[str, Any]) -> dict[str, Any]:
    for block in turn["content"]:
        if block["type"] == "tool_use":
            block["name"] = block["name"].title()
            block["input"] = {"filled": None, **dict(reversed(block["input"].items()))}
    return turn


def _without_thinking(turn: dict[str, Any]) -> dict[str, Any]:
    return {**turn, "content": [b for b in turn["content"] if b["type"] != "thinking"]}


def _calls_alone(turn: dict[str, Any]) -> dict[str, Any]:
    return {**turn, "content": [b for b in turn["content"] if b["type"] == "tool_use"]}


@both
@pytest.mark.parametrize("change", [_same, _cached, _reserialised, _without_thinking, _calls_alone])
async def test_whatever_is_echoed_the_call_continues_with_every_sampled_token(
    opened: Open, rows: list[FinishedCall], stream: bool, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    engine = PlayEngine(LOOK, DONE, said("Bye."))
    async with opened(engine, rendering=family()) as session:
        first = await ask(session, [USER], stream=stream, system="Be brief.")
        history = [USER, change(echoed(first)), results(first, 1, 0)]
        second = await ask(session, history, stream=stream, system=[{"type": "text", "text": "Be brief."}])
        history += [echoed(second), {"role": "system", "content": "Five minutes left."}, USER]
        await ask(session, history, stream=stream, system="Be brief.")
        assert continued(engine, rows, 2) and continued(engine, rows, 3)
        assert all_trained(session, rows) and len(segments(session.tree).segments) == 1
    assert [row.drift for row in rows] == [{}, {}, {}]
    one, two = (c["id"] for c in rows[0].reply["tool_calls"])  # type: ignore[index]
    added = family().decode(rows[1].added_prompt_ids)
    assert added.index(f"r {one}") < added.index(f"r {two}")


async def test_a_bare_reply_is_known_by_its_signature_though_its_text_was_changed(
    opened: Open, rows: list[FinishedCall]
) -> None:
    engine = PlayEngine(DONE, DONE)
    async with opened(engine, rendering=family()) as session:
        turn = echoed(await ask(session, [USER], stream=True))
        turn["content"][1]["text"] = "DONE!"
        await ask(session, [USER, turn, USER], stream=False)
        assert continued(engine, rows, 2)


async def test_equal_texts_are_told_apart_by_their_signatures(opened: Open, rows: list[FinishedCall]) -> None:
    engine = PlayEngine(said("Done.", "one"), said("Done.", "two"), DONE)
    async with opened(engine, rendering=family()) as session:
        first = await ask(session, [USER], stream=False)
        await ask(session, [USER], stream=False)
        await ask(session, [USER, echoed(first), USER], stream=False)
    assert rows[2].parent_seq == 1 and rows[2].drift == {}


@both
@pytest.mark.parametrize("keep", [[0, 1, 2], [2], [0, 1]])
async def test_a_partial_echo_is_a_fork(opened: Open, rows: list[FinishedCall], stream: bool, keep: list[int]) -> None:
    engine = PlayEngine(LOOK, DONE)
    async with opened(engine, rendering=family()) as session:
        first = await ask(session, [USER], stream=stream)
        turn = echoed(first)
        turn["content"] = [turn["content"][i] for i in keep]
        after = results(first, 0) if 2 in keep else USER
        await ask(session, [USER, turn, after], stream=stream)
        assert session.tree[1].fate is Fate.SUPERSEDED and all_trained(session, rows)
    assert rows[1].drift["how"] == "forked" and rows[1].shared < rows[0].prompt_tokens + len(raw(LOOK))


@pytest.mark.parametrize("cut", ['{"name": "bash", "arguments": {"command": "l', '{"name": "bash", "arguments": {a}}'])
async def test_malformed_arguments_reach_the_client_as_they_were_sampled(
    opened: Open, rows: list[FinishedCall], cut: str
) -> None:
    turn = sampled("<tool_call>", cut, "</tool_call>", END)
    engine = PlayEngine(turn, turn, DONE)
    async with opened(engine, rendering=family()) as session, api(session) as client:
        whole = await ask(session, [USER], stream=False)
        events = await client.messages.create(
            model="policy",
            max_tokens=9,
            messages=[USER],
            tools=OFFERED,
            stream=True,
        )
        pieces = [e.delta.partial_json async for e in events if e.type == "content_block_delta"]  # type: ignore[union-attr]
        await ask(session, [USER, echoed(whole), results(whole)], stream=False)
    arguments = whole.content[0].input["__unparsedToolInput"]
    assert "".join(pieces) == arguments == last(rows[:1])["tool_calls"][0]["arguments"]
    assert last(rows[:1])["malformed"]
    assert rows[2].parent_seq == 1 and rows[2].shared == rows[0].prompt_tokens + len(raw(turn))


@both
async def test_a_reply_cut_by_length_is_said_and_goes_on(opened: Open, rows: list[FinishedCall], stream: bool) -> None:
    caps = Caps(9, len(raw(DONE)) - 4, 2000)
    engine = PlayEngine(DONE, DONE)
    async with opened(engine, rendering=family(), caps=caps) as session:
        reply = await ask(session, [USER], stream=stream)
        assert reply.stop_reason == "max_tokens" and rows[0].finish == "length"
        await ask(session, [USER, echoed(reply), USER], stream=stream)
        assert continued(engine, rows, 2) and all_trained(session, rows)


@both
async def test_an_overflow_is_the_message_that_makes_claude_code_compact(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    async with opened(PlayEngine(DONE), rendering=family(), caps=Caps(9, 50, 700)) as session:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await ask(session, [{"role": "user", "content": "y " * 900}], stream=stream)
        assert not session.capped.is_set()
    error: Any = refused.value.body
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"] == f"prompt is too long: {rows[0].prompt_tokens} tokens > 699 maximum"


async def test_tokens_are_counted_as_a_call_would_have_them_and_nothing_else_happens(
    opened: Open, rows: list[FinishedCall]
) -> None:
    engine = PlayEngine(LOOK, DONE)
    async with opened(engine, rendering=family()) as session, api(session) as client:
        first = await ask(session, [USER], stream=True)
        history: list[Any] = [USER, echoed(first), results(first)]
        counted = await client.messages.count_tokens(model="policy", messages=history, tools=OFFERED)
        again: Any = [USER]
        assert (await client.messages.count_tokens(model="policy", messages=again, tools=OFFERED)).input_tokens == len(
            engine.requests[0].prompt_ids
        )
        assert len(rows) == 1 and session.tree[1].fate is Fate.DELIVERED
        reply = await ask(session, history, stream=True)
        assert reply.usage.input_tokens == counted.input_tokens == len(engine.requests[1].prompt_ids)
        with pytest.raises(anthropic.BadRequestError, match="at least one message"):
            await client.messages.count_tokens(model="policy", messages=[])


async def test_pings_break_the_silence(opened: Open) -> None:
    gate = asyncio.Event()
    turn = Turn("", raw=raw(DONE), gate=gate)
    body = {"model": "policy", "max_tokens": 9, "messages": [USER], "stream": True}
    seen = b""
    options = {"keepalive": 0.01}
    async with (
        opened(PlayEngine(turn), rendering=family(), proxy=options) as session,
        transport(session.socket_path) as http,
        http.stream("POST", "/v1/messages?beta=true", json=body, headers={"x-api-key": session.token}) as response,
    ):
        async for data in response.aiter_raw():
            seen += data
            if seen.count(b"event: ping\n") >= 3:
                gate.set()
    assert seen.startswith(b"event: message_start\n") and seen.count(b"message_start") == 2
    assert b"waiting" not in seen and seen.endswith(b'event: message_stop\ndata: {"type": "message_stop"}\n\n')


async def test_either_way_of_saying_the_token_is_taken_and_a_wrong_one_refused(opened: Open) -> None:
    async with opened(PlayEngine(DONE, DONE), rendering=family()) as session:
        await ask(session, [USER], stream=False)
        async with AsyncAnthropic(
            base_url="http://lego", auth_token=session.token, max_retries=0, http_client=transport(session.socket_path)
        ) as client:
            await client.messages.create(model="policy", max_tokens=9, messages=[USER])
        async with api(session, "sk-wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await client.messages.create(model="policy", max_tokens=9, messages=[USER])
    body: Any = refused.value.body
    assert body["error"]["type"] == "authentication_error"


async def test_models_and_unknown_paths_answer_in_the_clients_own_words(opened: Open) -> None:
    async with opened(PlayEngine(), rendering=family()) as session, api(session) as client:
        models = await client.models.list()
        assert [m.id for m in models.data] == ["policy"] and models.data[0].max_input_tokens == 2000
        assert (await client.models.retrieve("policy")).display_name == "policy"
        with pytest.raises(anthropic.NotFoundError) as refused:
            await client.messages.batches.list()
    body: Any = refused.value.body
    assert body["error"]["type"] == "not_found_error"


async def test_engine_faults_are_worth_trying_again_before_and_inside_a_stream(
    opened: Open, rows: list[FinishedCall]
) -> None:
    early = Turn("", raw=raw(DONE), fail="CUDA is gone")
    late = Turn("", pieces=9, raw=raw(DONE), gated=4, fail="CUDA is gone")
    async with opened(PlayEngine(early, late), rendering=family()) as session:
        with pytest.raises(anthropic.InternalServerError, match="CUDA is gone"):
            await ask(session, [USER], stream=True)
        with pytest.raises(anthropic.APIStatusError) as inside:
            await ask(session, [USER], stream=True)
    body: Any = inside.value.body
    assert body["error"]["type"] == "overloaded_error" and "CUDA" in body["error"]["message"]
    assert [(row.kind, row.fate) for row in rows] == [("rejected", "abandoned"), ("main", "abandoned")]


async def test_a_cap_is_final(opened: Open, rows: list[FinishedCall]) -> None:
    options = {"park": 0.0}
    async with opened(PlayEngine(DONE), rendering=family(), caps=Caps(1, 200, 2000), proxy=options) as session:
        await ask(session, [USER], stream=False)
        with pytest.raises(anthropic.BadRequestError, match="limit of 1 model calls"):
            await ask(session, [USER], stream=True)
        assert session.capped.is_set()
    assert rows[1].reason == "cap: turns"


@both
async def test_a_client_that_goes_away_cancels_and_its_partial_reply_is_no_whole_one(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    at = len(raw(DONE)) - 3
    turn = Turn("", pieces=len(raw(DONE)), raw=raw(DONE), gate=asyncio.Event(), gated=at)
    engine = PlayEngine(turn, DONE, DONE)
    async with opened(engine, rendering=family()) as session:
        async with api(session) as client:
            fields: dict[str, Any] = {"model": "policy", "max_tokens": 9, "messages": [USER], "stream": stream}
            pending = asyncio.create_task(client.messages.create(**fields))
            await turn.reached.wait()
            if stream:
                await (await pending).close()
            else:
                pending.cancel()
        while not rows:
            await asyncio.sleep(0)
        partial = last(rows)
        assert engine.cancelled == 1 and partial["content"]
        signature = f"sig_{_mark(session)}"
        blocks = [
            {"type": "thinking", "thinking": partial["reasoning"], "signature": signature},
            {"type": "text", "text": partial["content"][:2]},
        ]
        await ask(session, [USER, {"role": "assistant", "content": blocks}, USER], stream=stream, tools=[])
        parts = segments(session.tree)
    assert (rows[0].fate, rows[0].finish, rows[0].status) == ("abandoned", "abort", 499)
    assert rows[1].drift["how"] == "forked" and parts.excluded == {"abandoned": at}


def _mark(session: Session) -> str:
    """The mark of the session's only reply, which its lost client has seen."""
    (reply,) = session.tree._history._replies.values()
    assert reply.mark
    return reply.mark


async def test_sub_agents_in_parallel_are_told_by_their_header(opened: Open, rows: list[FinishedCall]) -> None:
    rules = CallRules(subagent={"header": "x-claude-code-agent-id"})
    async with opened(PlayEngine(LOOK, DONE, DONE), rendering=family(), rules=rules) as session:
        first = await ask(session, [USER], stream=True)
        agents = [
            ask(session, [{"role": "user", "content": c}], stream=True, extra_headers={"x-claude-code-agent-id": c})
            for c in "ab"
        ]
        await asyncio.gather(*agents)
        assert all_trained(session, rows)
        assert first.stop_reason == "tool_use"
    assert [row.kind for row in rows] == ["main", "subagent", "subagent"]
    assert sum(len(row.completion_ids) for row in rows) == len(raw(LOOK)) + 2 * len(raw(DONE))
