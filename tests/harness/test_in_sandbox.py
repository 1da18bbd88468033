"""Real harnesses in a sealed sandbox against a canned chat server: an image without Python, no network, uid 1000."""

from __future__ import annotations

import pytest

from lego.harness.launch import LaunchValues, render
from lego.harness.spec import load_spec
from lego.tasks.task import DemoStep
from lego.trajectory.messages import Message, ToolCall
from tests.harness.canned import run_sealed, serve

pytestmark = pytest.mark.podman

FIX = "sed -i 's/mat/cat/' animal.txt"


def values(instruction: str, **changes: object) -> LaunchValues:
    settings: dict[str, object] = {
        "instruction": instruction, "token": "tok-123", "model": "policy", "max_turns": 8, "max_output_tokens": 64,
        "context": 4096, "temperature": 1.0, "workdir": "/app",
    }  # fmt: skip
    return LaunchValues(**(settings | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tiny-agent", "mini-swe-agent", "mini-swe-agent-text"])
async def test_solves_a_trivial_task_unmodified(name, podman, runtime, bare_image, sockets):
    spec, tag = load_spec(name), await runtime(name)
    script = [
        spec.script_turn(DemoStep("cat animal.txt", content="Look first.")),
        spec.script_turn(DemoStep(FIX)),
        spec.submit_turn(),
    ]
    launch = render(spec, values("Fix the animal. {token} -c \"quoted\"\nAnd 'this'."), tag)
    with serve(sockets, script) as canned:
        ran = await run_sealed(podman, bare_image, launch, sockets, {"/app/animal.txt": b"a mat\n"})
    assert ran.code in spec.done.ok, ran.output
    assert ran.files["/app/animal.txt"] == b"a cat\n", ran.output
    assert len(canned.requests) == 3
    assert set(canned.tokens) == {"tok-123"}
    first, last = canned.requests[0], canned.requests[-1]
    assert "Fix the animal. {token} -c \"quoted\"\nAnd 'this'." in first["messages"][-1]["content"]
    assert first["model"] == "policy" and first["max_tokens"] == 64 and first["temperature"] == 1.0
    assert last["messages"][: len(first["messages"])] == first["messages"], "history must be append-only"
    assert any("a mat" in str(message["content"]) for message in last["messages"])
    if spec.script.style == "tool":
        answered = [message["tool_call_id"] for message in last["messages"] if message["role"] == "tool"]
        assert answered == ["call_0_0", "call_1_0"]
    else:
        assert "tools" not in first


async def test_the_repository_cannot_shadow_the_harness(podman, runtime, bare_image, sockets):
    spec, tag = load_spec("mini-swe-agent"), await runtime("mini-swe-agent")
    shadows = {f"/app/{name}/__init__.py": b"raise SystemExit('shadowed')" for name in ("requests", "json", "litellm")}
    with serve(sockets, [spec.submit_turn()]) as canned:
        ran = await run_sealed(podman, bare_image, render(spec, values("t"), tag), sockets, shadows)
    assert len(canned.requests) == 1, ran.output


async def test_commands_see_neither_the_token_nor_our_libraries(podman, runtime, bare_image, sockets):
    spec, tag = load_spec("tiny-agent"), await runtime("tiny-agent")
    with serve(sockets, [spec.script_turn(DemoStep("env")), spec.submit_turn()]) as canned:
        await run_sealed(podman, bare_image, render(spec, values("t"), tag), sockets)
    seen = canned.requests[1]["messages"][-1]["content"]
    assert "PATH=" in seen
    assert "tok-123" not in seen and "LD_LIBRARY_PATH" not in seen and "PYTHON" not in seen


async def tiny(podman, runtime, image, sockets, answers, **changes):
    spec, tag = load_spec("tiny-agent"), await runtime("tiny-agent")
    with serve(sockets, answers) as canned:
        ran = await run_sealed(podman, image, render(spec, values("t", **changes), tag), sockets)
    return ran, canned


def call(name: str, arguments: str) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall("", name, arguments),))


async def test_tiny_agent_ends_with_a_code_for_each_ending(podman, runtime, bare_image, sockets):
    spec = load_spec("tiny-agent")
    look = spec.script_turn(DemoStep("ls"))
    ran, canned = await tiny(podman, runtime, bare_image, sockets, [look, look, look], max_turns=2)
    assert (ran.code, len(canned.requests)) == (3, 2)
    (sockets / "proxy.sock").unlink()
    words = Message(role="assistant", content="I am done.")
    ran, canned = await tiny(podman, runtime, bare_image, sockets, [words, words, words])
    assert (ran.code, len(canned.requests)) == (4, 3)
    assert canned.requests[1]["messages"][-1] == {"role": "user", "content": "Call a tool: bash or submit."}
    (sockets / "proxy.sock").unlink()
    ran, canned = await tiny(podman, runtime, bare_image, sockets, [400])
    assert (ran.code, len(canned.requests)) == (4, 1), "a refusal is not asked again"
    (sockets / "proxy.sock").unlink()
    ran, canned = await tiny(podman, runtime, bare_image, sockets, [500, spec.submit_turn()])
    assert (ran.code, len(canned.requests)) == (0, 2), "a server fault is asked again"


async def test_tiny_agent_keeps_going_after_bad_calls(podman, runtime, bare_image, sockets):
    answers = [
        call("bash", '{"command": "ec'),
        call("bash", "[1]"),
        call("bash", '{"command": 3}'),
        call("fly", "{}"),
        call("bash", '{"command": "echo a\\u0000b"}'),
        call("bash", '{"command": "printf \'\\\\377\'; exit 7"}'),
        call("bash", '{"command": "yes | head -c 9000"}'),
        call("submit", "not json"),
    ]
    ran, canned = await tiny(podman, runtime, bare_image, sockets, answers, max_turns=20)
    assert ran.code == 0, ran.output
    said = [message["content"] for message in canned.requests[-1]["messages"] if message["role"] == "tool"]
    assert all(text.startswith("[bad arguments:") for text in said[:3])
    assert said[3] == "[no such tool: fly]"
    assert said[4].startswith("[cannot run:")
    assert said[5] == "\ufffd\n[exit 7]"
    assert "[5000 bytes left out]" in said[6]
    echoed = [m["tool_calls"][0]["function"]["arguments"] for m in canned.requests[-1]["messages"] if "tool_calls" in m]
    assert echoed[0] == '{"command": "ec', "what the model said goes back as it came"


async def test_tiny_agent_does_not_wait_for_what_a_command_leaves_running(podman, runtime, bare_image, sockets):
    spec = load_spec("tiny-agent")
    answers = [spec.script_turn(DemoStep("sleep 100 & echo started")), spec.submit_turn()]
    ran, canned = await tiny(podman, runtime, bare_image, sockets, answers)
    assert ran.code == 0
    assert canned.requests[1]["messages"][-1]["content"] == "started"


async def test_tiny_agent_streams(podman, runtime, bare_image, sockets):
    spec, tag = load_spec("tiny-agent"), await runtime("tiny-agent")
    launch = render(spec, values("t"), tag)
    at = launch.argv.index("--model")
    streaming = type(launch)((*launch.argv[:at], "--stream", "yes", *launch.argv[at:]), launch.env, launch.image_mount)
    both = Message(
        role="assistant",
        content="Two at once: é",
        tool_calls=(ToolCall("", "bash", '{"command": "echo one"}'), ToolCall("", "bash", '{"command": "echo two"}')),
    )
    with serve(sockets, [both, spec.submit_turn()]) as canned:
        ran = await run_sealed(podman, bare_image, streaming, sockets)
    assert ran.code == 0, ran.output
    reply, one, two = canned.requests[1]["messages"][1:]
    assert reply["content"] == "Two at once: é"
    assert [c["function"]["arguments"] for c in reply["tool_calls"]] == [
        '{"command": "echo one"}',
        '{"command": "echo two"}',
    ]
    assert (one["tool_call_id"], one["content"]) == ("call_0_0", "one")
    assert (two["tool_call_id"], two["content"]) == ("call_0_1", "two")
