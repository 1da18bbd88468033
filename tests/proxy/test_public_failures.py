"""What has gone wrong in public in systems of this kind, each told by where it was reported (docs/failures.md).

The official clients talk to the real proxy; the policy is played, in the format of a family that thinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import numpy as np
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from lego.objective.advantages import segment_weights
from lego.proxy.records import FinishedCall
from lego.proxy.rules import CallRules
from lego.proxy.session import Caps, Session
from lego.trajectory.messages import Message
from lego.trajectory.segments import segments
from tests.proxy.conftest import Open
from tests.proxy.families import DONE, END, LOOK, all_trained, continued, family, raw, said, sampled
from tests.proxy.parts import PlayEngine, Turn, client, transport
from tests.trajectory._support import TOOLS, mark, tokenizer

USER: Any = {"role": "user", "content": "go"}
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
    for t in TOOLS
]
MESSAGES_TOOLS: Any = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in TOOLS]
LS = sampled("<tool_call>", '\n{"name": "bash", "arguments": {"command": "ls"}}\n', "</tool_call>", END)

both = pytest.mark.parametrize("stream", [False, True])


async def chat(session: Session, messages: Sequence[Any], **more: Any) -> Any:
    async with client(session) as api:
        return await api.chat.completions.create(model="policy", messages=list(messages), tools=CHAT_TOOLS, **more)


async def chunks(session: Session, messages: Sequence[Any]) -> list[Any]:
    async with client(session) as api:
        stream = await api.chat.completions.create(
            model="policy", messages=list(messages), tools=CHAT_TOOLS, stream=True
        )
        return [chunk async for chunk in stream]


async def messages_api(session: Session, messages: Sequence[Any], **more: Any) -> Any:
    async with AsyncAnthropic(
        base_url="http://lego", api_key=session.token, max_retries=0, http_client=transport(session.socket_path)
    ) as api:
        return await api.messages.create(
            model="policy", max_tokens=200, messages=list(messages), tools=MESSAGES_TOOLS, **more
        )


def turn_of(reply: Any) -> dict[str, Any]:
    """The assistant turn as most harnesses keep it: without the reasoning."""
    kept: dict[str, Any] = reply.choices[0].message.model_dump(exclude_none=True)
    kept.pop("reasoning_content", None)
    return kept


def results_of(reply: Any) -> list[Any]:
    calls = reply.choices[0].message.tool_calls or []
    return [{"role": "tool", "tool_call_id": call.id, "content": f"r {i}"} for i, call in enumerate(calls)]


def retold(reply: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}


def answered(reply: Any) -> dict[str, Any]:
    ids = [block.id for block in reply.content if block.type == "tool_use"]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": "r"} for i in ids]}


async def test_eight_rollouts_of_a_thinking_policy_are_eight_samples(opened: Open, rows: list[FinishedCall]) -> None:
    """slime#2288: a template that drops thinking made 64 samples of 8 rollouts; verl#6854: a prefix guard broke."""
    samples = 0
    for _ in range(8):
        rows.clear()
        async with opened(PlayEngine(LOOK, said("Hm.", "why"), LOOK, DONE), rendering=family()) as session:
            history = [USER]
            for _ in range(4):
                reply = await chat(session, history)
                history += [turn_of(reply), *results_of(reply), USER]
            assert all_trained(session, rows)
            samples += len(segments(session.tree).segments)
    assert samples == 8


async def test_ids_that_no_tokenizer_would_write_stay_as_they_were_sampled(
    opened: Open, rows: list[FinishedCall]
) -> None:
    """NeMo-RL#1337, ms-swift#10012: decoding and encoding again, or joining at the stop id by text, moves tokens."""
    letters = [i for c in "The function in window.py" for i in tokenizer().encode(c)]
    assert tokenizer().encode("The function in window.py") != letters
    engine = PlayEngine(Turn("", raw=[*letters, mark(END)]), DONE)
    async with opened(engine, rendering=family()) as session:
        reply = await chat(session, [USER])
        assert reply.choices[0].message.content == "The function in window.py"
        await chat(session, [USER, turn_of(reply), USER])
        assert continued(engine, rows, 2) and all_trained(session, rows)
    joint = engine.requests[1].prompt_ids[rows[0].prompt_tokens :].tolist()
    assert joint[: len(letters) + 1] == [*letters, mark(END)] and joint[len(letters) + 1] != mark(END)


@both
async def test_marks_inside_a_reply_are_neither_lost_nor_renumbered(
    opened: Open, rows: list[FinishedCall], stream: bool
) -> None:
    """minimind#850: skip_special_tokens loses tokens that were sampled."""
    odd = sampled("so ", "<|im_start|>", "on", END)
    engine = PlayEngine(odd, DONE)
    async with opened(engine, rendering=family()) as session, client(session) as api:
        if stream:
            chunks = await api.chat.completions.create(model="policy", messages=[USER], stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])
        else:
            text = turn_of(await api.chat.completions.create(model="policy", messages=[USER]))["content"]
        assert text == "so <|im_start|>on"
        await api.chat.completions.create(model="policy", messages=[USER, {"role": "assistant", "content": text}, USER])
        assert continued(engine, rows, 2) and all_trained(session, rows)


async def test_nothing_that_follows_a_stop_id_is_trained(opened: Open, rows: list[FinishedCall]) -> None:
    """The newline after <|im_end|> is the template's; the policy never sampled it."""
    engine = PlayEngine(LS, DONE)
    async with opened(engine, rendering=family()) as session:
        reply = await chat(session, [USER])
        await chat(session, [USER, turn_of(reply), *results_of(reply)])
        (segment,) = segments(session.tree).segments
    for at in np.flatnonzero(segment.ids == mark(END))[:-1]:
        assert family().decode(segment.ids[at + 1 : at + 2]) == "\n" and not segment.mask[at + 1]
    assert segment.ids[segment.mask].tolist() == [*raw(LS), *raw(DONE)]


async def test_sub_agents_between_the_turns_of_the_main_thread_leave_it_whole(
    opened: Open, rows: list[FinishedCall]
) -> None:
    """rllm#774, rllm#775: interleaved sub-agents took every turn of the main thread for a new trajectory."""
    rules = CallRules(subagent={"header": "x-agent"})
    engine = PlayEngine(*[LOOK, said("a1"), said("b1"), said("a2"), said("b2"), DONE])
    async with opened(engine, rendering=family(), rules=rules) as session:
        first = await messages_api(session, [USER])
        agents: dict[str, list[Any]] = {name: [{"role": "user", "content": name}] for name in "ab"}
        for _ in range(2):
            for name, history in agents.items():
                reply = await messages_api(session, history, extra_headers={"x-agent": name})
                history += [retold(reply), USER]
        await messages_api(session, [USER, retold(first), answered(first)])
        assert all_trained(session, rows)
        assert [segment.call_ids for segment in segments(session.tree).segments] == [(2, 4), (3, 5), (1, 6)]
    assert [row.kind for row in rows] == ["main", *["subagent"] * 4, "main"]


async def test_ids_never_meet_again_and_a_retry_is_a_call_of_its_own(opened: Open, rows: list[FinishedCall]) -> None:
    """rllm#511: equal ids, and the traces of requests tried again, ran into one another."""
    seen: list[str] = []
    for _ in range(2):
        async with opened(PlayEngine(LOOK, LOOK, DONE), rendering=family()) as session:
            first, again = await chat(session, [USER]), await chat(session, [USER])
            await chat(session, [USER, turn_of(first), *results_of(first)])
            seen += [call.id for reply in (first, again) for call in reply.choices[0].message.tool_calls]
            seen += [first.id, again.id]
            assert (rows[-1].parent_seq, rows[-1].drift) == (1, {})
            assert all_trained(session, rows[-3:])
    assert len(set(seen)) == len(seen)


async def test_a_title_that_is_asked_for_first_is_no_part_of_the_trial(opened: Open, rows: list[FinishedCall]) -> None:
    """rllm#786, rllm#795: OpenCode's call for a title came first and was taken for the trial's root."""
    rules = CallRules(auxiliary=({"system": "title generator"},))
    engine = PlayEngine(said("A title"), LOOK, DONE)
    async with opened(engine, rendering=family(), rules=rules) as session:
        await chat(session, [{"role": "system", "content": "You are a title generator."}, USER])
        first = await chat(session, [USER])
        await chat(session, [USER, turn_of(first), *results_of(first)])
        parts = segments(session.tree)
    assert [row.kind for row in rows] == ["auxiliary", "main", "main"] and rows[2].parent_seq == 2
    assert [segment.call_ids for segment in parts.segments] == [(2, 3)]
    assert parts.excluded == {"auxiliary": len(rows[0].completion_ids)}


async def test_a_harness_that_compacts_for_ever_meets_the_turn_cap(opened: Open, rows: list[FinishedCall]) -> None:
    """opencode#22792: a compaction loop went on until somebody looked."""
    engine = PlayEngine(*[said(f"Summary {i}") for i in range(9)])
    options = {"park": 0.0}
    async with opened(engine, rendering=family(), caps=Caps(4, 200, 2000), proxy=options) as session:
        summary = "nothing yet"
        with pytest.raises(openai.BadRequestError, match="limit of 4 model calls"):
            while True:
                reply = await chat(session, [USER, {"role": "user", "content": f"Compact: {summary}"}])
                summary = reply.choices[0].message.content
        assert session.capped.is_set() and session.cap_reason == "turns"
        assert all_trained(session, rows[:4])


async def test_condensations_make_rows_of_a_trial_but_no_heavier_trial(opened: Open, rows: list[FinishedCall]) -> None:
    """OpenHands SDK#753: each condensation splits the trajectory; none of its parts may be lost or count twice."""
    engine = PlayEngine(*[LS, said("So far: ls.")] * 3, DONE)
    async with opened(engine, rendering=family()) as session:
        history: list[Any] = [USER]
        for _ in range(3):
            reply = await chat(session, history)
            so_far = [*history, turn_of(reply), *results_of(reply)]
            told = await chat(session, [*so_far, {"role": "user", "content": "Condense."}])
            history = [USER, {"role": "user", "content": f"Condensed: {told.choices[0].message.content}"}]
        await chat(session, history)
        assert all_trained(session, rows)
        owned = [segment.sampled for segment in segments(session.tree).segments]
    assert len(owned) == 4 and sum(segment_weights(owned)) == pytest.approx(1.0)


async def test_what_changes_with_every_request_leaves_the_prefix_alone(opened: Open, rows: list[FinishedCall]) -> None:
    """vllm#36829, llama.cpp#20623: a fingerprint in the system prompt killed the prefix from its first token;
    omlx#2881: so did the tokens left, appended to it; sglang#36877: so did cache_control, moving from turn to turn."""
    rules = CallRules(
        volatile=({"system_line": "^x-anthropic-billing-header"}, {"system_line": "^<total_tokens>.* left"})
    )
    engine = PlayEngine(LOOK, LOOK, DONE)
    async with opened(engine, rendering=family(), rules=rules) as session:
        history: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "go"}]}]
        for number in range(3):
            system = f"x-anthropic-billing-header: cch={number}\nBe brief.\n<total_tokens>{9 - number} left"
            for turn in history:
                for block in turn["content"]:
                    block.pop("cache_control", None)
            history[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
            reply = await messages_api(session, history, system=system)
            history += [retold(reply), answered(reply)]
        assert continued(engine, rows, 2) and continued(engine, rows, 3) and all_trained(session, rows)
    assert [row.drift for row in rows] == [{"volatile": 2}] * 3


async def test_a_call_sampled_in_one_piece_streams_whole_and_names_its_id_once(opened: Open) -> None:
    """vllm#34887: arguments in the first delta were lost; nanoclaw#1241: an id on every delta made one call many."""
    whole = Turn("", pieces=1, raw=raw(LOOK))
    async with opened(PlayEngine(whole), rendering=family()) as session:
        ids: list[str] = []
        arguments = ["", ""]
        for chunk in await chunks(session, [USER]):
            for call in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
                ids += [call.id] if call.id else []
                arguments[call.index] += call.function.arguments or ""
    assert arguments == ['{"command":  "ls\\u00e9", "n": 1}', '{"path": "a"}']
    assert len(ids) == len(set(ids)) == 2


CUT = raw(sampled("<tool_call>", '\n{"name": "bash", "arguments": {"command": "ls'))


@both
@pytest.mark.parametrize("by", ["limit", "context"])
async def test_a_call_cut_in_the_middle_is_a_reply_and_its_echo_a_request(
    opened: Open, rows: list[FinishedCall], stream: bool, by: str
) -> None:
    """vllm#57244: arguments cut short in the history were a server error; vllm#42400: so was a call that met the end
    of the context."""
    prompt = len(family().render([Message("user", "go")], TOOLS))
    caps = Caps(9, len(CUT), 2000) if by == "limit" else Caps(9, 500, prompt + len(CUT))
    engine = PlayEngine(Turn("", pieces=5, raw=[*CUT, *raw(LS)]), DONE)
    async with opened(engine, rendering=family(), caps=caps) as session:
        kept: dict[str, Any] = {"role": "assistant", "content": ""}
        if stream:
            for chunk in await chunks(session, [USER]):
                delta, finish = chunk.choices[0].delta, chunk.choices[0].finish_reason
                kept["content"] += delta.content or ""
                for call in delta.tool_calls or []:
                    kept.setdefault("tool_calls", [call.model_dump(exclude_none=True)])
                    if not call.id:
                        kept["tool_calls"][0]["function"]["arguments"] += call.function.arguments
        else:
            reply = await chat(session, [USER])
            kept, finish = turn_of(reply), reply.choices[0].finish_reason
        assert finish == "length" and rows[0].completion_ids.tolist() == CUT
        after = [{"role": "tool", "tool_call_id": call["id"], "content": "cut"} for call in kept.get("tool_calls", [])]
        if by == "context":
            with pytest.raises(openai.BadRequestError) as full:
                await chat(session, [USER, kept, *after, USER])
            assert full.value.code == "context_length_exceeded"
        else:
            await chat(session, [USER, kept, *after, USER])
            assert continued(engine, rows, 2) and all_trained(session, rows)


LONG: Any = [{"role": "user", "content": "y " * 900}]


def _openai(session: Session) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url="http://lego/v1", api_key=session.token, max_retries=5, http_client=transport(session.socket_path)
    )


async def _long_chat(session: Session) -> None:
    async with _openai(session) as api:
        with pytest.raises(openai.BadRequestError):
            await api.chat.completions.create(model="policy", messages=LONG)


async def _long_response(session: Session) -> None:
    async with _openai(session) as api:
        with pytest.raises(openai.BadRequestError):
            await api.responses.create(model="policy", input=LONG)


async def _long_messages(session: Session) -> None:
    async with AsyncAnthropic(
        base_url="http://lego", api_key=session.token, max_retries=5, http_client=transport(session.socket_path)
    ) as api:
        with pytest.raises(anthropic.BadRequestError):
            await api.messages.create(model="policy", max_tokens=9, messages=LONG)


@pytest.mark.parametrize("ask", [_long_chat, _long_response, _long_messages])
async def test_an_overflow_is_asked_once(opened: Open, rows: list[FinishedCall], ask: Callable[[Session], Any]) -> None:
    """OpenHands#7023, claude-code-proxy#60: said as a server's error, it cost ten retries and three minutes."""
    async with opened(PlayEngine(DONE), rendering=family(), caps=Caps(9, 50, 700)) as session:
        await ask(session)
        assert session.summary().faults == 0
    assert [(row.status, row.reason) for row in rows] == [(400, "context_overflow")]
