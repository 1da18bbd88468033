"""The tree: identity of replies, places, fates, and streams that concatenate exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.errors import TrajectoryError
from lego.trajectory.arrays import Fate, IntArray, Stream, as_ids, common_prefix
from lego.trajectory.history import same_reply
from lego.trajectory.messages import Message, Tool, ToolCall
from lego.trajectory.prompt import HistoryPolicy, compose
from lego.trajectory.tree import Call, CallTree, Continue, Fork, Root, rebuild
from tests.trajectory._harness import RandomHarness, run
from tests.trajectory._support import TOOLS, mark, rendering, tokenizer

SYSTEM, USER, ON = Message("system", "s"), Message("user", "u"), Message("user", "on")
TWO = Message("assistant", "t", "hm", (ToolCall("i1", "bash", "{}"), ToolCall("i2", "bash", "{}")))
BARE = Message("assistant", "I am done.")


def enter(tree: CallTree, messages: list[Message], reply: Message, tools=TOOLS, fate=Fate.DELIVERED) -> Call:  # type: ignore[no-untyped-def]
    ids = [*tokenizer().encode("so"), mark("<|im_end|>")]
    prompt = compose(tree, rendering("tiny-chatml"), messages, tools)
    return prompt.enter(tree, ids, [-0.5] * len(ids), "stop", reply, fate=fate)


def test_a_reply_is_known_by_all_of_its_minted_ids() -> None:
    tree = CallTree()
    call = enter(tree, [SYSTEM, USER], TWO)
    tail = [Message("tool", "r", tool_call_id="i2"), Message("tool", "r", tool_call_id="i1")]
    renamed = tuple(replace(c, name="Agent", arguments='{"filled": 1}') for c in TWO.tool_calls)
    echo = Message("assistant", "other text", None, renamed[::-1])
    assert tree.place([SYSTEM, USER, echo, *tail], TOOLS) == Continue(call, tuple(tail))


@pytest.mark.parametrize(
    "echo",
    [
        replace(TWO, tool_calls=TWO.tool_calls[:1]),
        replace(TWO, tool_calls=(*TWO.tool_calls, ToolCall("i3", "bash", "{}"))),
        replace(TWO, tool_calls=(TWO.tool_calls[0], TWO.tool_calls[0])),
        replace(TWO, tool_calls=()),
        replace(TWO, role="user", tool_calls=()),
    ],
)
def test_a_partial_or_foreign_echo_is_a_fork(echo: Message) -> None:
    tree = CallTree()
    call = enter(tree, [SYSTEM, USER], TWO)
    place = tree.place([SYSTEM, USER, echo, ON], TOOLS)
    assert place == Fork(call, 2, superseded=(call.id,))


def test_a_bare_reply_is_known_by_its_text() -> None:
    tree = CallTree()
    call = enter(tree, [SYSTEM, USER], BARE)
    assert tree.place([SYSTEM, USER, Message("assistant", "I am done. \r\n"), ON], TOOLS) == Continue(call, (ON,))
    assert isinstance(tree.place([SYSTEM, USER, Message("assistant", "I am  done."), ON], TOOLS), Fork)


def test_a_bare_reply_is_known_by_its_mark_where_the_echo_has_one() -> None:
    tree = CallTree()
    one = enter(tree, [SYSTEM, USER], replace(BARE, mark="a"))
    two = enter(tree, [SYSTEM, USER], replace(BARE, mark="b"))

    def place(**echo: str | None) -> object:
        return tree.place([SYSTEM, USER, replace(BARE, **echo), ON], TOOLS)  # type: ignore[arg-type]

    assert place(mark="a") == Continue(one, (ON,), superseded=(two.id,))
    assert place(mark="b", content="rewritten") == Continue(two, (ON,))
    assert isinstance(place(mark="c"), Fork), "another reply with the same text"
    assert isinstance(place(mark="a", content="I am"), Fork), "what a cut stream left"
    assert isinstance(place(mark="a", content=""), Fork)
    assert isinstance(place(mark=None), Continue)
    assert tree.recognise(replace(BARE, mark="a", content="rewritten")) is one
    assert tree.recognise(replace(BARE, mark="a", content="I am")) is None
    assert tree.recognise(replace(BARE, mark="c")) is None


def test_other_messages_or_tools_are_a_root() -> None:
    tree = CallTree()
    enter(tree, [SYSTEM, USER], BARE)
    assert tree.place([Message("system", "sub"), USER], TOOLS) == Root()
    assert tree.place([SYSTEM, USER, BARE, ON], ()) == Root()
    assert tree.place([SYSTEM, USER, BARE, ON], (*TOOLS, Tool("more"))) == Root()
    with pytest.raises(TrajectoryError):
        tree.place([], TOOLS)


def test_the_deepest_of_equal_retries_is_continued() -> None:
    tree = CallTree()
    first = enter(tree, [SYSTEM, USER], BARE)
    later = enter(tree, [SYSTEM, USER, BARE, ON], TWO)
    enter(tree, [SYSTEM, USER], BARE)
    assert later.parent_id == first.id
    place = tree.place([SYSTEM, USER, BARE, ON, TWO, ON], TOOLS)
    assert isinstance(place, Continue) and place.call is later


def test_our_own_reply_is_preferred_to_equal_text_of_the_harness() -> None:
    tree = CallTree()
    said = Message("assistant", "said")
    enter(tree, [SYSTEM, USER], BARE)
    enter(tree, [SYSTEM, USER, BARE, ON, said, ON], TWO)
    ours = enter(tree, [SYSTEM, USER, BARE, ON], said)
    place = tree.place([SYSTEM, USER, BARE, ON, said, ON], TOOLS)
    assert isinstance(place, Continue) and place.call is ours


@pytest.mark.parametrize("rest", [[], [ON], [replace(BARE, content="no"), ON]])
def test_deleted_rewritten_and_repeated_replies_are_superseded(rest: list[Message]) -> None:
    tree = CallTree()
    call = enter(tree, [SYSTEM, USER], BARE)
    prompt = compose(tree, rendering("tiny-chatml"), [SYSTEM, USER, *rest], TOOLS)
    assert prompt.fates == {call.id: Fate.SUPERSEDED} and call.fate is Fate.SUPERSEDED


def test_continued_and_abandoned_replies_are_not_superseded() -> None:
    tree = CallTree()
    first = enter(tree, [SYSTEM, USER], BARE)
    enter(tree, [SYSTEM, USER, BARE, ON], TWO, fate=Fate.ABANDONED)
    assert compose(tree, rendering("tiny-chatml"), [SYSTEM, USER, BARE, ON], TOOLS).fates == {}
    assert compose(tree, rendering("tiny-chatml"), [SYSTEM, USER, ON], TOOLS).fates == {}
    assert first.fate is Fate.DELIVERED
    tree.settle(2, Fate.SUPERSEDED)
    assert tree[2].fate is Fate.ABANDONED


def test_raw_keeps_thinking_and_template_forks_where_it_is_dropped() -> None:
    def trial(history: HistoryPolicy) -> tuple[str, int, int]:
        tree = CallTree()
        ids = tokenizer().encode("<think>\nhm\n</think>\n\nso<|im_end|>")
        first = compose(tree, rendering("qwen3"), [USER], TOOLS, history)
        call = first.enter(tree, ids, [-1.0] * len(ids), "stop", Message("assistant", "so", "hm"))
        prompt = compose(tree, rendering("qwen3"), [USER, Message("assistant", "so", "hm"), ON], TOOLS, history)
        assert np.array_equal(tree.full_ids(call)[: prompt.shared], prompt.ids[: prompt.shared])
        return prompt.how, prompt.shared - len(first.ids), len(ids)

    how, shared, sampled = trial("raw")
    assert (how, shared) == ("continued", sampled)
    how, shared, sampled = trial("template")
    assert how == "forked" and shared == 0


def test_known_replies_in_a_new_context_are_spliced_by_raw_ids() -> None:
    tree = CallTree()
    call = enter(tree, [SYSTEM, USER], TWO)
    prompt = compose(tree, rendering("tiny-chatml"), [Message("system", "compacted"), USER, TWO, ON], TOOLS)
    assert (prompt.how, prompt.spliced, prompt.rerendered) == ("forked", 1, 0)
    text = rendering("tiny-chatml").decode(prompt.ids)
    assert "<|im_start|>assistant\nso<|im_end|>\n<|im_start|>user\non" in text
    assert call.fate is Fate.DELIVERED


def test_a_dropped_turn_continues_from_the_last_reply_that_is_left() -> None:
    tree = CallTree()
    first = enter(tree, [SYSTEM, USER], TWO)
    result = Message("tool", "r", tool_call_id="i1")
    dropped = enter(tree, [SYSTEM, USER, TWO, result], BARE)
    prompt = compose(tree, rendering("tiny-chatml"), [SYSTEM, USER, TWO, result, ON], TOOLS)
    assert (prompt.how, prompt.parent, prompt.fates) == ("continued", first, {dropped.id: Fate.SUPERSEDED})


def test_seqs_are_given_when_requests_arrive() -> None:
    tree = CallTree()
    early, late = tree.reserve(), tree.reserve()
    prompt = compose(tree, rendering("tiny-chatml"), [USER], ())
    other = compose(tree, rendering("tiny-chatml"), [ON], ())
    other.enter(tree, [1], [-1.0], "stop", BARE, seq=late)
    prompt.enter(tree, [1], [-1.0], "stop", BARE, seq=early)
    assert [call.seq for call in tree] == [1, 2] and tree.reserve() == 3
    with pytest.raises(TrajectoryError):
        prompt.enter(tree, [1], [-1.0], "stop", BARE, seq=early)


def test_impossible_parents_are_refused() -> None:
    tree = CallTree()
    call = tree.add(None, 0, [1, 2], [3], [-1.0], "stop")
    with pytest.raises(TrajectoryError):
        tree.add(call, 4, [], [], [], "stop")
    with pytest.raises(TrajectoryError):
        rebuild([replace(call.row(), parent_seq=7)])


@pytest.mark.parametrize("family", ["tiny-chatml", "qwen3"])
@pytest.mark.parametrize("history", ["raw", "template"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_streams_are_what_the_engine_saw(family: str, history: HistoryPolicy, data: st.DataObject) -> None:
    harness = RandomHarness(data, family, history)
    run(harness, data.draw(st.integers(1, 8)))
    again = rebuild([call.row() for call in harness.tree][::-1])
    for call in harness.tree:
        truth = harness.truth[call.id]
        assert np.array_equal(harness.tree.prompt_ids(call), truth.prompt)
        whole = np.concatenate([truth.prompt, truth.completion])
        assert np.array_equal(harness.tree.full_ids(call), whole)
        assert np.array_equal(again.full_ids(again[call.id]), whole)
        parent, shared = again.attach(whole)
        assert parent is not None and shared == len(whole)


ids_lists = st.lists(st.integers(0, 2), max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), ids_lists, ids_lists), min_size=1, max_size=8), ids_lists)
def test_attach_finds_the_longest_prefix(rows: list[tuple[int, list[int], list[int]]], prompt: list[int]) -> None:
    tree = CallTree()
    streams: dict[int, list[int]] = {}
    for cut, added, completion in rows:
        parents = list(tree)
        parent = parents[cut % len(parents)] if parents and cut else None
        shared = 0 if parent is None else cut % (parent.length + 1)
        call = tree.add(parent, shared, added, completion, [-1.0] * len(completion), "stop")
        streams[call.id] = [*([] if parent is None else streams[parent.id][:shared]), *added, *completion]
        assert tree.full_ids(call).tolist() == streams[call.id]

    def common(stream: list[int]) -> int:
        differ = (i for i, (a, b) in enumerate(zip(stream, prompt, strict=False)) if a != b)
        return next(differ, min(len(stream), len(prompt)))

    parent, shared = tree.attach(as_ids(prompt))
    assert shared == max(common(stream) for stream in streams.values())
    assert (parent is None) == (shared == 0)
    if parent is not None:
        assert parent.id == min(seq for seq, stream in streams.items() if common(stream) == shared)


def test_attach_looks_only_at_calls_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = CallTree()
    root = tree.add(None, 0, [1, 2, 3], [4], [-1.0], "stop")
    for number in range(100):
        tree.add(root, 3, [10 + number, 5], [6], [-1.0], "stop")
        tree.add(None, 0, [200 + number], [6], [-1.0], "stop")
    looked = []

    def counted(a: IntArray, b: IntArray) -> int:
        looked.append(1)
        return common_prefix(a, b)

    monkeypatch.setattr("lego.trajectory.tree.common_prefix", counted)
    parent, shared = tree.attach(as_ids([1, 2, 3, 60, 5, 7]))
    assert parent is not None and parent.added_prompt_ids.tolist() == [60, 5] and shared == 5
    assert len(looked) == 4, "the prompts and completions of two calls"


def test_a_call_keeps_no_more_of_its_prompt_than_it_adds() -> None:
    tree, history = CallTree(), [SYSTEM, USER]
    enter(tree, history, BARE)
    call = enter(tree, [*history, BARE, ON], replace(BARE, content="Again."))
    assert call.shared and call.added_prompt_ids.base is None


def test_a_turn_costs_its_new_messages_not_its_history() -> None:
    """Of a long trial, a turn renders only what is new: counted, not timed."""
    tree, history = CallTree(), [SYSTEM, USER]
    r = rendering("tiny-chatml")
    for turn in range(60):
        prompt = compose(tree, r, history, TOOLS)
        reply = Message("assistant", "", None, (ToolCall(f"m{turn}", "bash", "{}"),))
        prompt.enter(tree, [5, mark("<|im_end|>")], [-1.0, -1.0], "stop", reply)
        if turn:
            assert prompt.how == "continued"
            assert len(prompt.added_ids) < 30
        history = [*history, reply, Message("tool", "r", tool_call_id=f"m{turn}")]


def test_each_of_identical_sub_agents_goes_on_from_its_own_reply() -> None:
    tree = CallTree()
    other = replace(TWO, tool_calls=(ToolCall("j1", "bash", "{}"),))
    one, two = enter(tree, [SYSTEM, USER], TWO), enter(tree, [SYSTEM, USER], other)
    assert compose(tree, rendering("tiny-chatml"), [SYSTEM, USER, TWO, ON], TOOLS).fates == {
        one.id: Fate.DELIVERED, two.id: Fate.SUPERSEDED,
    }  # fmt: skip
    assert compose(tree, rendering("tiny-chatml"), [SYSTEM, USER, other, ON], TOOLS).fates == {two.id: Fate.DELIVERED}
    assert (one.fate, two.fate) == (Fate.DELIVERED, Fate.DELIVERED)


def test_a_history_of_the_same_messages_is_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a call that ends in its middle meanwhile is seen."""
    tree, history = CallTree(), [SYSTEM, USER]
    for turn in range(20):
        reply = Message("assistant", "", None, (ToolCall(f"m{turn}", "bash", "{}"),))
        enter(tree, history, reply)
        history = [*history, reply, Message("tool", "r", tool_call_id=f"m{turn}")]
    looked = []

    def counted(reply: Message, echo: Message) -> bool:
        looked.append(reply)
        return same_reply(reply, echo)

    monkeypatch.setattr("lego.trajectory.history.same_reply", counted)
    place = tree.place(history, TOOLS)
    assert isinstance(place, Continue) and place.call.id == 20 and len(looked) == 1
    retried = enter(tree, history[:10], BARE)
    assert tree.place(history, TOOLS).superseded == (retried.id,)
    assert len(looked) > 20


def test_a_call_that_ends_while_another_is_in_flight_is_seen_by_the_next() -> None:
    tree, history = CallTree(), (SYSTEM, USER)
    enter(tree, [*history], TWO)
    more = (*history, TWO, ON)
    in_flight = compose(tree, rendering("tiny-chatml"), more, TOOLS)
    retried = enter(tree, [*history], BARE)
    reply = replace(TWO, tool_calls=(ToolCall("j1", "bash", "{}"),))
    in_flight.enter(tree, [5], [-1.0], "stop", reply)
    assert tree.place((*more, reply, ON), TOOLS).superseded == (retried.id,)


def test_ids_that_grow_keep_what_was_handed_out() -> None:
    stream = Stream(as_ids([1, 2]))
    one = stream.extend(2, [3])
    assert one is not None and one.tolist() == [1, 2, 3]
    assert stream.extend(2, [4]) is None, "others stand there"
    two = stream.extend(3, range(5000))
    assert two is not None and one.tolist() == [1, 2, 3] and two[3:].tolist() == list(range(5000))
    assert stream.ends_with(two[1:], 5003) and not stream.ends_with(one[1:], 5003)
    with pytest.raises(ValueError, match="read-only"):
        two[0] = 7


def test_requests_in_flight_at_once_do_not_disturb_each_other() -> None:
    tree = CallTree()
    enter(tree, [SYSTEM, USER], TWO)
    more = [Message("user", word) for word in ("so", "x = 1", "ok")]
    prompts = [compose(tree, rendering("tiny-chatml"), [SYSTEM, USER, TWO, one], TOOLS) for one in more]
    before = [prompt.ids.tolist() for prompt in prompts]
    for number, prompt in enumerate(prompts):
        call = prompt.enter(tree, [5 + number], [-1.0], "stop", replace(BARE, content=f"n{number}"))
        assert tree.full_ids(call).tolist() == [*before[number], 5 + number] == tree.extended(call, ()).tolist()
    assert [prompt.ids.tolist() for prompt in prompts] == before
