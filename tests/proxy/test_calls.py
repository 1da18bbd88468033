"""What a harness says and hears, and what is kept of it, through the official client on a session's own socket."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import openai
import pytest

from lego.clock import TrialClock
from lego.proxy.records import FinishedCall
from lego.proxy.rules import CallRules
from lego.proxy.session import Caps
from lego.proxy.wire import Wire
from lego.trajectory.arrays import Fate
from lego.trajectory.segments import segments
from tests.proxy.conftest import Open
from tests.proxy.parts import END, PlayEngine, Turn, client, ids, transport

USER = {"role": "user", "content": "go"}
BASH: Any = [{"type": "function", "function": {"name": "bash", "description": "", "parameters": {"type": "object"}}}]


async def ask(session: Any, messages: list[Any], **more: Any) -> Any:
    async with client(session) as api:
        return await api.chat.completions.create(model="policy", messages=messages, **more)


async def collect(stream: Any) -> dict[str, Any]:
    """A stream, put together again; `pieces` counts the chunks that said something."""
    out: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "finish": None, "usage": None, "pieces": 0}
    async for chunk in stream:
        out["usage"] = chunk.usage or out["usage"]
        for choice in chunk.choices:
            delta = choice.delta
            out["pieces"] += bool(delta.content or delta.tool_calls)
            out["content"] += delta.content or ""
            out["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                if call.id:
                    out["calls"][call.index] = {"id": call.id, "name": call.function.name, "arguments": ""}
                out["calls"][call.index]["arguments"] += call.function.arguments
            out["finish"] = choice.finish_reason or out["finish"]
    return out


async def test_a_plain_reply(opened: Open, rows: list[FinishedCall]) -> None:
    async with opened(PlayEngine("hello|")) as session:
        reply = await ask(session, [USER])
    assert reply.choices[0].message.content == "hello"
    assert reply.choices[0].finish_reason == "stop"
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (rows[0].prompt_tokens, 6)
    row = rows[0]
    assert row.completion_ids.tolist() == ids("hello|") and row.completion_ids.dtype == np.int32
    assert row.logprobs is not None and row.logprobs.tolist() == [-0.5] * 6
    assert (row.seq, row.parent_seq, row.shared, row.kind, row.fate) == (1, None, 0, "main", "delivered")
    assert (row.finish, row.status, row.dialect, row.drift) == ("stop", 200, "openai_chat", {})
    assert row.messages == {"kept": 0, "new": [{"role": "user", "content": "go"}]}
    assert row.reply == {"role": "assistant", "content": "hello"}
    assert row.started_at <= (row.first_token_at or 0) <= row.ended_at


async def test_a_streamed_reply_arrives_in_pieces_and_is_kept_the_same(opened: Open, rows: list[FinishedCall]) -> None:
    text = '[hm]I look<bash\n{"command": "ls"}><submit\n{}>|'
    async with opened(PlayEngine(Turn(text, pieces=7), text)) as session, client(session) as api:
        stream = await api.chat.completions.create(
            model="policy", messages=[USER], tools=BASH, stream=True, stream_options={"include_usage": True}
        )
        said = await collect(stream)
        whole = await api.chat.completions.create(model="policy", messages=[USER], tools=BASH)
    assert (said["content"], said["reasoning"], said["finish"]) == ("I look", "hm", "tool_calls")
    assert said["pieces"] > 3
    calls = whole.choices[0].message.tool_calls or []
    assert [(c["name"], c["arguments"]) for c in said["calls"].values()] == [
        (c.function.name, c.function.arguments) for c in calls if c.type == "function"
    ]
    assert said["calls"][0]["id"] != said["calls"][1]["id"] != calls[0].id
    assert rows[0].reply is not None
    assert [c["id"] for c in rows[0].reply["tool_calls"]] == [c["id"] for c in said["calls"].values()]
    assert said["usage"].completion_tokens == len(ids(text))


async def test_a_call_is_continued_from_its_raw_ids_although_arguments_come_back_changed(
    opened: Open, rows: list[FinishedCall]
) -> None:
    engine = PlayEngine('<bash\n{"b": 1,  "a": 2}>|', "done|")
    async with opened(engine) as session:
        first = (await ask(session, [USER], tools=BASH)).choices[0].message.model_dump(exclude_none=True)
        first["tool_calls"][0]["function"] = {"name": "Bash", "arguments": '{"a":2,"b":1}'}
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "out"}
        await ask(session, [USER, first, result], tools=BASH)
        second = engine.requests[1].prompt_ids
        parts = segments(session.tree)
    parent = np.concatenate([engine.requests[0].prompt_ids, rows[0].completion_ids])
    assert second[: len(parent)].tolist() == parent.tolist()
    assert (rows[1].parent_seq, rows[1].shared) == (1, len(parent))
    assert rows[1].messages == {"kept": 2, "of": 1, "new": [{**result}]}
    assert not parts.dropped and sum(s.sampled for s in parts.segments) == sum(len(r.completion_ids) for r in rows)
    assert len(parts.segments) == 1


async def test_a_reply_cut_by_length_is_kept_without_a_stop_id(opened: Open, rows: list[FinishedCall]) -> None:
    async with opened(PlayEngine("abcdefgh|"), caps=Caps(9, 4, 2000)) as session:
        reply = await ask(session, [USER], max_tokens=1000)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("abcd", "length")
    assert END not in rows[0].completion_ids and rows[0].finish == "length"


async def test_the_context_cuts_a_reply_and_refuses_a_prompt_that_fills_it(
    opened: Open, rows: list[FinishedCall]
) -> None:
    async with opened(PlayEngine("x" * 500), caps=Caps(9, 400, 100)) as session:
        reply = await ask(session, [USER])
        assert reply.usage.total_tokens == 100
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(session, [{"role": "user", "content": "y" * 100}])
        summary = session.summary()
    assert refused.value.code == "context_length_exceeded"
    assert "maximum context length is 100 tokens" in refused.value.message
    assert (rows[1].kind, rows[1].status, rows[1].reason) == ("rejected", 400, "context_overflow")
    assert rows[1].prompt_tokens > 100 and len(rows[1].completion_ids) == 0
    assert summary.rejected == {"context_overflow": 1} and not session.capped.is_set()


async def test_wishes_are_recorded_where_they_differ_and_not_obeyed(opened: Open, rows: list[FinishedCall]) -> None:
    engine = PlayEngine("ok|")
    async with opened(engine, temperature=0.7) as session:
        await ask(session, [USER], temperature=0.1, top_p=1, seed=3, tools=BASH, tool_choice="required", max_tokens=2)
    assert rows[0].wishes == {"temperature": 0.1, "seed": 3, "tool_choice": "required", "max_tokens": 2}
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.stop_ids, sampling.seed) == (0.7, 200, (END,), None)


async def test_seeds_differ_by_call_and_repeat_by_session(opened: Open) -> None:
    seeds = []
    for _ in range(2):
        engine = PlayEngine("a|", "b|")
        async with opened(engine, seed=5) as session:
            await ask(session, [USER])
            await ask(session, [USER])
        seeds.append([request.sampling.seed for request in engine.requests])
    assert seeds[0] == seeds[1] and seeds[0][0] != seeds[0][1]


async def test_rules_of_the_harness_mark_calls_and_drop_volatile_lines(opened: Open, rows: list[FinishedCall]) -> None:
    rules = CallRules({"header": "x-agent"}, ({"last_user": "^title"},), ({"system_line": "^bill"},))
    engine = PlayEngine("a|", "b|", "c|")
    async with opened(engine, rules=rules) as session, client(session) as api:
        head = [{"role": "system", "content": "bill 1\nBe brief"}]
        await ask(session, [*head, USER])
        await api.chat.completions.create(model="policy", messages=[USER], extra_headers={"X-Agent": "2"})
        await ask(session, [{"role": "user", "content": "title this"}])
    assert [row.kind for row in rows] == ["main", "subagent", "auxiliary"]
    assert rows[0].drift == {"volatile": 1}
    assert rows[0].messages["new"][0] == {"role": "system", "content": "Be brief"}


async def test_a_reply_deleted_by_the_harness_is_superseded_and_said_so(opened: Open, rows: list[FinishedCall]) -> None:
    fates: list[tuple[int, str]] = []
    async with opened(PlayEngine("bad|", "good|"), on_fate=lambda seq, fate: fates.append((seq, fate))) as session:
        await ask(session, [USER])
        await ask(session, [USER])
        assert session.tree[1].fate is Fate.SUPERSEDED
    assert fates == [(1, "superseded")]
    assert rows[1].shared == rows[0].prompt_tokens and rows[1].drift["how"] == "forked"


async def test_calls_in_parallel_stop_the_clock_once(opened: Open, rows: list[FinishedCall]) -> None:
    now = [100.0]
    gate = asyncio.Event()
    one, two = Turn("one|", gate=gate), Turn("two|", gate=gate)
    clock = TrialClock(60.0, now=lambda: now[0])
    async with opened(PlayEngine(one, two), clock=clock) as session:
        pending = [asyncio.create_task(ask(session, [{"role": "user", "content": c}])) for c in "ab"]
        await asyncio.gather(one.reached.wait(), two.reached.wait())
        now[0] += 7.0
        gate.set()
        replies = await asyncio.gather(*pending)
        now[0] += 2.0
        assert (clock.waited, clock.elapsed) == (7.0, 2.0)
        assert session.summary().engine_seconds == 7.0
    assert {reply.choices[0].message.content for reply in replies} == {"one", "two"}
    assert len(rows) == 2


async def test_the_clock_runs_while_the_harness_keeps_us_waiting(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that does not read its stream must not stop its own time."""
    now = [0.0]
    send = Wire.send

    async def slow(wire: Wire, data: bytes) -> None:
        now[0] += 5.0
        await send(wire, data)

    monkeypatch.setattr(Wire, "send", slow)
    clock = TrialClock(60.0, now=lambda: now[0])
    async with opened(PlayEngine(Turn("abcd|", pieces=5)), clock=clock) as session, client(session) as api:
        stream = await api.chat.completions.create(model="policy", messages=[USER], stream=True)
        assert (await collect(stream))["content"] == "abcd"
    assert (clock.elapsed, clock.waited) == (25.0, 0.0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_the_generation_and_leaves_an_abandoned_partial(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    turn = Turn("abcdef|", pieces=7, gate=asyncio.Event(), gated=3)
    engine = PlayEngine(turn, "again|")
    async with opened(engine) as session:
        async with client(session) as api:
            asked = api.chat.completions.create(model="policy", messages=[USER], stream=stream)  # type: ignore[call-overload]
            pending = asyncio.create_task(asked)
            await turn.reached.wait()
            if stream:
                await (await pending).close()
            else:
                pending.cancel()
        while not rows:
            await asyncio.sleep(0)
        assert engine.cancelled == 1
        await ask(session, [USER])
        parts = segments(session.tree)
        summary = session.summary()
    assert (rows[0].fate, rows[0].finish, rows[0].status) == ("abandoned", "abort", 499)
    assert rows[0].completion_ids.tolist() == ids("abc")
    assert rows[1].drift["how"] == "forked"
    assert parts.excluded == {"abandoned": 3}
    assert (summary.calls, summary.abandoned) == (2, 1)


async def test_a_client_that_goes_before_the_first_token_leaves_a_rejected_row(
    opened: Open, rows: list[FinishedCall]
) -> None:
    turn = Turn("abc|", gate=asyncio.Event())
    async with opened(PlayEngine(turn)) as session:
        pending = asyncio.create_task(ask(session, [USER]))
        await turn.reached.wait()
        pending.cancel()
        while not rows:
            await asyncio.sleep(0)
    assert (rows[0].kind, rows[0].reason, rows[0].status) == ("rejected", "client_gone", 499)
    assert len(session.tree) == 0


async def test_of_the_same_request_twice_in_flight_the_one_left_is_cancelled_and_the_other_goes_on(
    opened: Open, rows: list[FinishedCall]
) -> None:
    first = Turn("abc|", pieces=4, gate=asyncio.Event(), gated=2)
    engine = PlayEngine(first, "xyz|", "done|")
    async with opened(engine) as session:
        async with client(session) as api:
            pending = asyncio.create_task(api.chat.completions.create(model="policy", messages=[USER]))  # type: ignore[list-item]
            await first.reached.wait()
            second = await ask(session, [USER])
            pending.cancel()
        while len(rows) < 2:
            await asyncio.sleep(0)
        assert engine.cancelled == 1
        echo = {"role": "assistant", "content": second.choices[0].message.content}
        await ask(session, [USER, echo, USER])
        parts = segments(session.tree)
    assert sorted((row.seq, row.fate) for row in rows) == [(1, "abandoned"), (2, "delivered"), (3, "delivered")]
    assert (rows[2].parent_seq, rows[2].drift) == (2, {})
    assert parts.excluded == {"abandoned": 2}


async def test_the_client_s_own_stream_helper_puts_calls_together(opened: Open, rows: list[FinishedCall]) -> None:
    text = 'I look<bash\n{"command": "ls"}><submit\n{}>|'
    offered: Any = {"messages": [USER], "tools": BASH}
    async with (
        opened(PlayEngine(Turn(text, pieces=len(text)))) as session,
        client(session) as api,
        api.chat.completions.stream(model="policy", **offered) as stream,
    ):
        arguments = [event.arguments async for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = (await stream.get_final_completion()).choices[0]
    assert arguments == ['{"command": "ls"}', "{}"]
    assert [call.id for call in final.message.tool_calls or []] == [
        c["id"] for c in (rows[0].reply or {})["tool_calls"]
    ]
    assert (final.message.content, final.finish_reason) == ("I look", "tool_calls")


async def test_an_engine_fault_is_an_error_worth_trying_again(opened: Open, rows: list[FinishedCall]) -> None:
    async with opened(PlayEngine(Turn("abc|", fail="CUDA is gone"))) as session:
        with pytest.raises(openai.InternalServerError, match="CUDA is gone"):
            await ask(session, [USER], stream=True)
        summary = session.summary()
    assert (rows[0].kind, rows[0].status) == ("rejected", 500)
    assert rows[0].reason == "engine_fault: engine: CUDA is gone"
    assert (summary.faults, summary.fault, summary.fault_of) == (1, "engine: CUDA is gone", "infra")


async def test_an_engine_fault_in_the_middle_of_a_stream_is_said_in_the_stream(
    opened: Open, rows: list[FinishedCall]
) -> None:
    turn = Turn("abcdef|", pieces=7, gated=2, fail="out of memory")
    async with opened(PlayEngine(turn)) as session, client(session) as api:
        stream = await api.chat.completions.create(model="policy", messages=[USER], stream=True)
        with pytest.raises(openai.APIError, match="out of memory"):
            await collect(stream)
    assert (rows[0].fate, rows[0].finish, rows[0].completion_ids.tolist()) == ("abandoned", "abort", ids("ab"))


async def test_the_wrong_policy_in_the_engine_is_a_fault(opened: Open) -> None:
    async with opened(PlayEngine("a|"), policy_version=4) as session:
        with pytest.raises(openai.InternalServerError, match="holds policy 0"):
            await ask(session, [USER])


async def test_what_the_template_cannot_say_is_a_final_error(opened: Open, rows: list[FinishedCall]) -> None:
    async with opened(PlayEngine("a|")) as session:
        with pytest.raises(openai.BadRequestError, match="no bells"):
            await ask(session, [{"role": "user", "content": "\x07"}])
        assert session.summary().faults == 0
    assert rows[0].reason == "bad_request"


async def test_a_malformed_call_reaches_the_harness_as_text_and_is_counted(
    opened: Open, rows: list[FinishedCall]
) -> None:
    async with opened(PlayEngine("<bas|", "<bas|")) as session:
        reply = await ask(session, [USER])
        async with client(session) as api:
            said = await collect(await api.chat.completions.create(model="policy", messages=[USER], stream=True))
        assert session.summary().malformed == 2
    assert reply.choices[0].message.content == said["content"] == "bas"
    assert rows[0].reply is not None and rows[0].reply["malformed"] == ["a call without arguments"]


async def test_silence_is_broken_by_comments(opened: Open) -> None:
    turn = Turn("abc|", gate=asyncio.Event())
    body = {"model": "policy", "messages": [USER], "stream": True}
    seen = b""
    async with opened(PlayEngine(turn), proxy={"keepalive": 0.01}) as session, transport(session.socket_path) as http:
        headers = {"Authorization": f"Bearer {session.token}"}
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            async for data in response.aiter_raw():
                seen += data
                if seen.count(b": waiting\n\n") >= 2 and turn.gate is not None:
                    turn.gate.set()
    assert seen.startswith(b'data: {"id": "chatcmpl-')
    assert seen.count(b'"role": "assistant"') == 1
    assert seen.endswith(b"data: [DONE]\n\n")
