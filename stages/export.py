"""`lego export`: trials as a data set for other tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lego.errors import StoreError
from stages._common import config_options, print_json, progress

if TYPE_CHECKING:
    from lego.config.load import Loaded


@click.command()
@click.option(
    "--format", "kind", type=click.Choice(["tokens", "chat", "atif"]), default="tokens", show_default=True,
    help="tokens: ids, masks, log-probs; chat: what TRL reads; atif: Harbor's trajectories.",
)  # fmt: skip
@click.option("--split", type=click.Choice(["train", "eval", "demo"]), default=None, help="Only rounds of this kind.")
@click.option("--round", "rounds", type=int, multiple=True, metavar="N", help="Only round N; may be repeated.")
@click.option("--harness", "harnesses", multiple=True, metavar="NAME", help="Only this harness; may be repeated.")
@click.option("--solved", is_flag=True, help="Only trials that solved their task.")
@click.option(
    "-o", "--output", metavar="FILE", default="",
    help="Where to write: .jsonl, or with tokens .parquet. [default: FORMAT.jsonl in the run's folder]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@config_options
def command(
    loaded: Loaded,
    as_json: bool,
    kind: str,
    split: str | None,
    rounds: tuple[int, ...],
    harnesses: tuple[str, ...],
    solved: bool,
    output: str,
    force: bool,
) -> None:
    """Write finished trials as a data set, one row a segment: what one trial's conversation split into.

    Rows carry messages, tools, reward and where they come from. Tokens that the loss leaves out are no row here
    either. Reads the run only; a running run is exported as far as it is.
    """
    from lego.export.files import write_jsonl, write_tokens_parquet, write_whole
    from lego.export.formats import ROWS
    from lego.export.trials import Choice, Left, chosen, parts
    from lego.rundb.paths import run_db
    from lego.rundb.store import Store

    database = run_db(loaded.config.run.dir, loaded.config.run.name)
    target = Path(output) if output else database.parent / f"{kind}.jsonl"
    if target.suffix not in (".jsonl", ".parquet"):
        raise click.UsageError(f"{target}: a data set ends in .jsonl or .parquet")
    parquet = target.suffix == ".parquet"
    if parquet and kind != "tokens":
        raise click.UsageError(f"{target}: Parquet holds --format tokens; {kind} is .jsonl")
    store = Store.open_read_only(database)
    trials = chosen(store, Choice(split or "", rounds, harnesses, solved))
    if not trials:
        raise StoreError("no finished trial fits", fault="user", hint="lego status says what there is")
    left, count, seen = Left(), 0, set[int]()
    with progress("trials", len(trials), passing=True) as bar:

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal count
            for part in parts(store, trials, left):
                count += 1
                seen.add(part.trial["trial"])
                yield ROWS[kind](part)
                bar.update(len(seen))
            if not count:
                raise StoreError(
                    f"none of {len(trials)} trials has tokens", fault="user",
                    hint="retention.tokens: drop removes those of closed rounds",
                )  # fmt: skip

        write_whole(target, write_tokens_parquet if parquet else write_jsonl, rows(), force=force)
    if as_json:
        print_json({"file": str(target), "trials": len(seen), "rows": count, "left_out": asdict(left)})
        return
    click.echo(f"{target}: {len(seen)} trials, {count} rows")
    if left.without_tokens:
        click.echo(f"{left.without_tokens} trials left out: their token data was removed (retention.tokens)", err=True)
    if left.without_samples:
        click.echo(f"{left.without_samples} trials left out: nothing in them was sampled for the loss", err=True)
