"""The proxy on the project's own engines and rendering: what is kept is what was sampled, with its probabilities."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lego.engine.base import PolicyRef
from lego.engine.scripted import ScriptedEngine
from lego.proxy.app import Proxy
from lego.proxy.session import Caps, SessionSpec
from lego.trajectory.messages import Message, Tool, ToolCall
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.segments import segments
from lego.trajectory.tokenizer import load_tokenizer
from tests._tiny import tiny_policy  # noqa: F401
from tests.proxy.parts import client

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
BASH = (Tool("bash", "Run a command.", TOOLS[0]["function"]["parameters"]),)
USER = {"role": "user", "content": "The function in w.py is wrong. Fix it."}


@pytest.fixture
def rendering(tiny_policy: Path) -> Rendering:  # noqa: F811
    return open_rendering(load_tokenizer(tiny_policy), "tiny-chatml")


def spec(folder: Path, name: str, **more: Any) -> SessionSpec:
    (folder / name).mkdir()
    caps = Caps(max_turns=20, max_output_tokens=60, context=4096)
    return SessionSpec(id=name, socket_dir=folder / name, token=f"sk-{name}", caps=caps, **more)


async def test_a_scripted_demonstration_is_heard_as_it_was_written(short_dir: Path, rendering: Rendering) -> None:
    engine = ScriptedEngine()
    before = [Message("user", USER["content"])]
    call = Message("assistant", tool_calls=(ToolCall("", "bash", '{"command": "sed -i \'s/<=/</\' w.py"}'),))
    last = Message("assistant", "Done.")
    engine.assign("demo", [rendering.encode_reply(before, call, BASH), rendering.encode_reply(before, last, BASH)])
    rows: list[Any] = []
    async with (
        Proxy(engine, rendering) as proxy,
        proxy.session(spec(short_dir, "demo", on_call=rows.append)) as session,
        client(session) as api,
    ):
        first = await api.chat.completions.create(model="policy", messages=[USER], tools=TOOLS)  # type: ignore[list-item]
        said = first.choices[0].message
        assert said.tool_calls is not None and said.tool_calls[0].type == "function"
        assert said.tool_calls[0].function.arguments == '{"command": "sed -i \'s/<=/</\' w.py"}'
        result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": ""}
        history: list[Any] = [USER, said.model_dump(exclude_none=True), result]
        second = await api.chat.completions.create(model="policy", messages=history, tools=TOOLS)
        assert second.choices[0].message.content == "Done."
    assert [(row.sampler, row.logprobs) for row in rows] == [("script", None)] * 2
    assert [row.parent_seq for row in rows] == [None, 1]
    assert rows[1].shared == len(rows[0].added_prompt_ids) + len(rows[0].completion_ids)


async def test_recorded_log_probs_are_those_of_a_fresh_forward_pass(
    short_dir: Path,
    tiny_policy: Path,  # noqa: F811
    rendering: Rendering,
) -> None:
    from lego.engine.transformers import TransformersEngine

    engine = TransformersEngine(dtype="float32", device="cpu", max_concurrent=4, threads=1)
    await engine.load(PolicyRef(0, str(tiny_policy), ""))
    try:
        async with Proxy(engine, rendering) as proxy, proxy.session(spec(short_dir, "t", seed=3)) as session:
            await asyncio.gather(_turns(session, False, 1), _turns(session, True, 2), _turns(session, True, 3))
            result = segments(session.tree)
        assert not result.dropped and not result.excluded
        assert sum(s.sampled for s in result.segments) == session.summary().sampled_tokens > 0
        for segment in result.segments:
            scored = await engine.score(segment.ids, 1)
            gap = np.abs(scored - segment.logprobs[1:])[segment.mask[1:]]
            assert gap.max() < 1e-4
    finally:
        await engine.close()


async def _turns(session: Any, stream: bool, number: int) -> None:
    """Three turns of a harness that answers each reply with a result or a nudge."""
    messages: list[Any] = [{"role": "user", "content": f"{number}: {USER['content']}"}]
    async with client(session) as api:
        for _ in range(3):
            said: dict[str, Any] = {"role": "assistant", "content": ""}
            if stream:
                chunks = await api.chat.completions.create(model="policy", messages=messages, tools=TOOLS, stream=True)
                calls: dict[int, Any] = {}
                async for chunk in chunks:
                    delta = chunk.choices[0].delta
                    said["content"] += delta.content or ""
                    for call in delta.tool_calls or []:
                        assert call.function is not None
                        known = calls.setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
                        known["name"] += call.function.name or ""
                        known["arguments"] += call.function.arguments or ""
                if calls:
                    said["tool_calls"] = [
                        {"id": c.pop("id"), "type": "function", "function": c} for _, c in sorted(calls.items())
                    ]
            else:
                reply = await api.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
                said = reply.choices[0].message.model_dump(exclude_none=True)
            messages.append(said)
            results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in said.get("tool_calls", [])]
            messages += results or [{"role": "user", "content": "go on"}]
