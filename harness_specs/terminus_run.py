"""Runs Terminus-2 (harbor), unmodified, on one task: its terminal is a tmux in this same sandbox.

    terminus_run.py --api URL --model NAME --context N --max-turns N --max-tokens N --temperature T < TASK

The API token is read from LEGO_TOKEN. Exit codes: 0 the agent said that the task is complete, or closed its shell;
3 out of turns; 4 the API refused a call; 5 the API cannot be reached or keeps failing.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from in_the_box import lend_tmux, take_token

FINISHED, OUT_OF_TURNS, REFUSED, NO_API = 0, 3, 4, 5
SETTINGS = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
CALL_SECONDS = 3600
# Summaries begin when this many tokens are left, or a quarter of a context that is short.
FREE_TOKENS = 8000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, kind in (("api", str), ("model", str), ("context", int), ("max-turns", int), ("max-tokens", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    return parser.parse_args()


class Here:
    """The environment that Terminus-2 drives: commands run where this process runs, as who it is."""

    default_user = None
    session_id = "here"

    async def exec(self, command: str, user: object = None, timeout_sec: float | None = None) -> object:
        from harbor.environments.base import ExecResult

        process = await asyncio.create_subprocess_exec(
            "/bin/bash",
            "-c",
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        return ExecResult(
            stdout=out.decode(errors="replace"), stderr=err.decode(errors="replace"), return_code=process.returncode
        )


async def work(options: argparse.Namespace, task: str, token: str) -> int:
    import litellm
    from harbor.agents.terminus_2.terminus_2 import Terminus2
    from harbor.llms.base import ContextLengthExceededError
    from harbor.models.agent.context import AgentContext

    for name in SETTINGS:
        del os.environ[name]
    agent = Terminus2(
        logs_dir=Path(tempfile.mkdtemp(prefix="terminus-2-")),
        model_name=f"openai/{options.model}",
        api_base=options.api,
        temperature=options.temperature,
        max_turns=options.max_turns,
        suppress_max_turns_warning=True,
        record_terminal_session=False,
        proactive_summarization_threshold=min(FREE_TOKENS, options.context // 4),
        model_info={
            "max_input_tokens": options.context,
            "max_output_tokens": options.max_tokens,
            "input_cost_per_token": 0.0,
            "output_cost_per_token": 0.0,
            "cache_creation_input_token_cost": 0.0,
            "cache_read_input_token_cost": 0.0,
            "litellm_provider": "openai",
            "mode": "chat",
        },
        llm_kwargs={"api_key": token, "max_tokens": options.max_tokens, "timeout": CALL_SECONDS, "max_retries": 0},
    )
    environment, context = Here(), AgentContext()
    await agent.setup(environment)
    try:
        await agent.run(task, environment, context)
    except (litellm.BadRequestError, litellm.AuthenticationError, ContextLengthExceededError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return REFUSED
    except litellm.APIError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return NO_API
    print(f"{agent.name()}: {context.metadata}", flush=True)
    out_of_turns = agent._n_episodes >= options.max_turns and not agent._pending_completion
    return OUT_OF_TURNS if out_of_turns else FINISHED


def main() -> int:
    options, task, token = arguments(), sys.stdin.read(), take_token()
    lend_tmux()
    os.environ.update(SETTINGS)
    return asyncio.run(work(options, task, token))


if __name__ == "__main__":
    sys.exit(main())
