"""Sockets, tokens, caps and the end of a session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from lego.errors import LeaseLost, ProxyError
from lego.proxy.app import Proxy
from lego.proxy.records import FinishedCall
from lego.proxy.session import Caps, SessionSpec
from tests.proxy.conftest import Open
from tests.proxy.parts import LetterRendering, PlayEngine, Turn, client, transport
from tests.proxy.test_calls import USER, ask

CAPS = Caps(max_turns=20, max_output_tokens=200, context=2000)


def spec(folder: Path, name: str) -> SessionSpec:
    (folder / name).mkdir()
    return SessionSpec(id=name, socket_dir=folder / name, token=f"sk-{name}", caps=CAPS)


async def test_a_token_opens_its_own_socket_only(short_dir: Path) -> None:
    async with (
        Proxy(PlayEngine("a|", "b|"), LetterRendering()) as proxy,
        proxy.session(spec(short_dir, "one")) as one,
        proxy.session(spec(short_dir, "two")) as two,
    ):
        for session, token in ((one, two.token), (two, one.token), (one, "")):
            with pytest.raises((openai.AuthenticationError, openai.OpenAIError)):
                async with client(session, token) as api:
                    await api.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert not len(one.tree) and not len(two.tree)
        await ask(one, [USER])
        assert (len(one.tree), len(two.tree)) == (1, 0)


async def test_a_wrong_token_is_refused_and_recorded_up_to_a_bound(opened: Open, rows: list[FinishedCall]) -> None:
    async with opened(PlayEngine()) as session, client(session, "sk-wrong") as api:
        for _ in range(120):
            with pytest.raises(openai.AuthenticationError) as refused:
                await api.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert refused.value.code == "invalid_api_key"
        assert session.summary().rejected == {"wrong_token": 120}
    assert len(rows) == 100 and {row.status for row in rows} == {401}


async def test_models_and_head_answer_with_the_context_window(opened: Open) -> None:
    async with opened(PlayEngine()) as session, client(session) as api, transport(session.socket_path) as http:
        models = await api.models.list()
        assert [m.id for m in models.data] == ["policy"]
        one = await api.models.retrieve("policy")
        assert one.model_extra is not None and one.model_extra["context_window"] == 2000
        assert (await http.head("/")).status_code == 200
        with pytest.raises(openai.NotFoundError):
            await api.embeddings.create(model="policy", input="x")
        bad = await http.post(
            "/v1/chat/completions", content=b"{", headers={"Authorization": f"Bearer {session.token}"}
        )
        assert bad.status_code == 400 and bad.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_beyond_a_mebibyte_is_taken_and_one_beyond_the_limit_is_not(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lego.proxy.app.MAX_BODY", 3_000_000)
    async with opened(PlayEngine("a|"), caps=Caps(9, 10, 3_000_000)) as session:
        await ask(session, [{"role": "user", "content": "x" * 2_000_000}])
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(session, [{"role": "user", "content": "x" * 4_000_000}])
        assert refused.value.status_code == 413
        assert session.summary().rejected == {"too_large": 1}


async def test_a_full_context_is_the_end_only_if_nothing_came_after_it(opened: Open) -> None:
    async with opened(PlayEngine("a|", "b|")) as session:
        await ask(session, [USER])
        with pytest.raises(openai.BadRequestError):
            await ask(session, [{"role": "user", "content": "x" * 3000}])
        assert session.summary().overflowed
        await ask(session, [{"role": "user", "content": "a summary"}])
        assert not session.summary().overflowed
        assert session.summary().rejected == {"context_overflow": 1}


async def test_a_turn_cap_sets_the_event_and_parks_the_request_until_the_session_ends(
    opened: Open, rows: list[FinishedCall]
) -> None:
    async with opened(PlayEngine("a|", "b|"), caps=Caps(1, 10, 2000), proxy={"park": 600.0}) as session:
        await ask(session, [USER])
        assert not session.capped.is_set()
        pending = asyncio.create_task(ask(session, [USER]))
        await session.capped.wait()
        assert not pending.done()
        await session.close()
        with pytest.raises(openai.APIConnectionError):
            await pending
        assert session.summary().cap_reason == session.cap_reason == "turns"
    assert [(row.kind, row.reason) for row in rows] == [("main", ""), ("rejected", "cap: turns")]


async def test_a_cap_that_nobody_acts_on_becomes_a_final_error(opened: Open) -> None:
    async with opened(PlayEngine("a|", "b|"), caps=Caps(1, 10, 2000), proxy={"park": 0.0}) as session:
        await ask(session, [USER])
        with pytest.raises(openai.BadRequestError, match="limit of 1 model calls") as refused:
            await ask(session, [USER])
    assert refused.value.code == "trial_limit_reached"


async def test_the_token_cap_cuts_the_call_that_reaches_it_and_refuses_the_next(
    opened: Open, rows: list[FinishedCall]
) -> None:
    caps = Caps(9, 100, 2000, max_total_tokens=7)
    async with opened(PlayEngine("abcd|", "efgh|"), caps=caps, proxy={"park": 0.0}) as session:
        await ask(session, [USER])
        assert (await ask(session, [USER])).choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError):
            await ask(session, [USER])
        assert session.summary().sampled_tokens == 7
    assert session.cap_reason == "tokens"
    assert [len(row.completion_ids) for row in rows] == [5, 2, 0]


async def test_parallel_calls_do_not_sample_past_the_token_cap_by_more_than_a_piece(opened: Open) -> None:
    gate = asyncio.Event()
    turns = [Turn("x" * 20, pieces=20, gate=gate), Turn("y" * 20, pieces=20, gate=gate)]
    engine = PlayEngine(*turns)
    async with opened(engine, caps=Caps(9, 100, 2000, max_total_tokens=10)) as session:
        pending = [asyncio.create_task(ask(session, [{"role": "user", "content": c}])) for c in "ab"]
        await asyncio.gather(*(turn.reached.wait() for turn in turns))
        gate.set()
        replies = await asyncio.gather(*pending)
        assert session.summary().sampled_tokens <= 11
    assert {reply.choices[0].finish_reason for reply in replies} == {"length"}


async def test_after_close_there_is_no_call_and_no_socket(opened: Open, rows: list[FinishedCall]) -> None:
    turn = Turn("abc|", pieces=4, gate=asyncio.Event(), gated=1)
    engine = PlayEngine(turn)
    async with opened(engine) as session, client(session) as api:
        asked = api.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        pending = asyncio.create_task(asked)
        await turn.reached.wait()
        await session.close()
        assert [row.fate for row in rows] == ["abandoned"]
        await session.close()
        with pytest.raises(openai.APIConnectionError):
            await pending
        with pytest.raises(openai.APIConnectionError):
            await ask(session, [USER])
        assert not session.socket_path.exists()
    assert engine.ended == ["trial-1"] and len(rows) == 1


async def test_a_record_that_cannot_be_written_ends_the_session_with_its_error(opened: Open) -> None:
    def refuse(call: FinishedCall) -> None:
        raise LeaseLost("another worker has it")

    with pytest.raises(LeaseLost):
        async with opened(PlayEngine("a|", "b|"), on_call=refuse) as session:
            await ask(session, [USER])
            assert session.capped.is_set()
            with pytest.raises(openai.InternalServerError):
                await ask(session, [USER])


async def test_on_tcp_the_token_names_the_session(short_dir: Path) -> None:
    async with (
        Proxy(PlayEngine("a|"), LetterRendering()) as proxy,
        proxy.session(spec(short_dir, "one")) as one,
        proxy.session(spec(short_dir, "two")) as two,
    ):
        port = await proxy.listen()
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=two.token, max_retries=0) as api:
            await api.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert (len(one.tree), len(two.tree)) == (0, 1)
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-no", max_retries=0) as api:
            with pytest.raises(openai.AuthenticationError):
                await api.models.list()


async def test_a_socket_path_too_long_and_a_session_twice_are_refused(short_dir: Path) -> None:
    async with Proxy(PlayEngine(), LetterRendering()) as proxy:
        with pytest.raises(ProxyError, match="too long"):
            async with proxy.session(spec(short_dir, "x" * 100)):
                pass
        first = spec(short_dir, "one")
        async with proxy.session(first):
            with pytest.raises(ProxyError, match="in use"):
                async with proxy.session(first):
                    pass
        async with proxy.session(first):
            pass


async def test_a_proxy_that_is_not_running_says_so(short_dir: Path) -> None:
    with pytest.raises(ProxyError, match="not running"):
        async with Proxy(PlayEngine(), LetterRendering()).session(spec(short_dir, "one")):
            pass
