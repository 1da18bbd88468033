"""Runs OpenHands' SDK, unmodified, on one task in the working directory.

    openhands_run.py --api URL --model NAME --context N --max-turns N --max-tokens N --temperature T < TASK

The API token is read from LEGO_TOKEN. Exit codes: 0 the agent finished; 3 out of turns; 4 stuck, or the API refused a
call; 5 the API cannot be reached or keeps failing.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from in_the_box import lend_tmux, take_token

FINISHED, OUT_OF_TURNS, GAVE_UP, NO_API = 0, 3, 4, 5
# Read by the SDK while it starts. A short context is the run's choice, not a mistake to be refused.
SETTINGS = {
    "ALLOW_SHORT_CONTEXT_WINDOWS": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LOG_LEVEL": "WARNING",
    "OPENHANDS_SUPPRESS_BANNER": "1",
}
CALL_SECONDS = 3600


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, kind in (("api", str), ("model", str), ("context", int), ("max-turns", int), ("max-tokens", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    return parser.parse_args()


def main() -> int:
    options, task, token = arguments(), sys.stdin.read(), take_token()
    task_path = lend_tmux()
    os.environ.update(SETTINGS)
    # By default a folder of the home, which the user of a task's image need not have. It is read all along.
    os.environ["OH_PERSISTENCE_DIR"] = "/tmp/openhands"

    from openhands.sdk import LLM, Agent, Conversation
    from openhands.sdk.conversation.exceptions import ConversationRunError
    from openhands.sdk.conversation.state import ConversationExecutionStatus as Status
    from openhands.sdk.event.conversation_error import ConversationErrorEvent
    from openhands.sdk.llm.exceptions import LLMRateLimitError, LLMServiceUnavailableError, LLMTimeoutError
    from openhands.tools.preset.default import get_default_condenser, get_default_tools

    # The SDK takes the sampling parameters of a model that it believes to reason out of the request without a word.
    llm = LLM(
        model=f"openai/{options.model}",
        base_url=options.api,
        api_key=token,
        temperature=options.temperature,
        max_input_tokens=options.context,
        max_output_tokens=options.max_tokens,
        input_cost_per_token=0.0,
        output_cost_per_token=0.0,
        capability_overrides={"supports_reasoning_effort": False},
        reasoning_effort=None,
        timeout=CALL_SECONDS,
        num_retries=3,
        retry_min_wait=1,
        retry_max_wait=8,
        usage_id="agent",
    )
    for name in SETTINGS:
        del os.environ[name]
    tools = [
        tool.model_copy(update={"params": {"env": {"PATH": task_path}}}) if tool.name == "terminal" else tool
        for tool in get_default_tools(enable_browser=False)
    ]
    condenser = get_default_condenser(llm.model_copy(update={"usage_id": "condenser"}))
    agent = Agent(llm=llm, tools=tools, condenser=condenser, system_prompt_kwargs={"cli_mode": True})
    errors: list[ConversationErrorEvent] = []

    def on_event(event: object) -> None:
        print(event, flush=True)
        if isinstance(event, ConversationErrorEvent):
            errors.append(event)

    conversation = Conversation(
        agent=agent,
        workspace=os.getcwd(),
        callbacks=[on_event],
        max_iteration_per_run=options.max_turns,
        visualizer=None,
    )
    conversation.send_message(task)
    try:
        conversation.run()
    except ConversationRunError as error:
        cause = error.original_exception
        print(f"{type(cause).__name__}: {cause}", file=sys.stderr)
        failing = (LLMRateLimitError, LLMServiceUnavailableError, LLMTimeoutError)
        return NO_API if isinstance(cause, failing) else GAVE_UP
    finally:
        conversation.close()
    if conversation.state.execution_status == Status.FINISHED:
        return FINISHED
    return OUT_OF_TURNS if any(error.code == "MaxIterationsReached" for error in errors) else GAVE_UP


if __name__ == "__main__":
    sys.exit(main())
