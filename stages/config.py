"""`lego config`: every setting, its value, how it may change and where the value came from."""

from __future__ import annotations

import json

import click

from lego.config.load import Loaded, flat, tags
from stages._common import config_options, print_json


@click.group()
def command() -> None:
    """Print every setting of a config and where it came from."""


@command.command()
@config_options
def show(loaded: Loaded, as_json: bool) -> None:
    """Print each setting: value, tag, origin.

    identity settings are frozen when the run first uses them; tunable ones may change between stages and the
    change is logged; machine ones describe this computer.
    """
    values, kinds = flat(loaded.config), tags()
    if as_json:
        print_json(
            {key: {"value": value, "tag": kinds[key], "origin": loaded.origin[key]} for key, value in values.items()}
        )
        return
    rows = [
        (key, json.dumps(value, ensure_ascii=False), kinds[key], loaded.origin[key]) for key, value in values.items()
    ]
    key_width = max(len(row[0]) for row in rows)
    value_width = min(max(len(row[1]) for row in rows), 40)
    for key, value, tag, origin in rows:
        click.echo(f"{key:<{key_width}}  {value:<{value_width}}  {tag:<8}  {origin}")
