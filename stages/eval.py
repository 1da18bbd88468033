"""`lego eval`: a policy on the held-out tasks, with an interval; a gate for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import uvloop

from lego.errors import GateError
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded


@click.command()
@click.option("--policy", "version", type=int, default=None, help="Which policy of the run. [default: the newest]")
@click.option("--again", is_flag=True, help="Evaluate once more, although this policy was evaluated already.")
@click.option("--fail-under", type=click.FloatRange(0, 1), default=None, help="Exit with 4 if pass@1 is below this.")
@config_options
def command(loaded: Loaded, as_json: bool, version: int | None, again: bool, fail_under: float | None) -> None:
    """Run the held-out tasks with a policy and say how often it solves them."""
    uvloop.run(_eval(loaded, as_json, version, again, fail_under))


async def _eval(loaded: Loaded, as_json: bool, version: int | None, again: bool, fail_under: float | None) -> None:
    from lego.rollout.next import eval_round_of
    from stages._eval import evaluate, tell_eval
    from stages._run import at_work

    async with at_work(loaded) as (run, workshop, stop):
        policy = run.newest_policy() if version is None else run.policy(version)
        result = await evaluate(workshop, eval_round_of(run, policy, again=again), stop)
        if result is None:
            return
        if as_json:
            print_json(result)
        else:
            tell_eval(result)
    if fail_under is not None and result["rate"] < fail_under:
        raise GateError(f"pass@1 {result['rate']:.3f} is below {fail_under:g}", hint="lego show TRIAL says why")
