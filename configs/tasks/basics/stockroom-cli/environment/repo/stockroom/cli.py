"""The command line."""

import argparse

from stockroom.store import StockError, Store


def parser():
    result = argparse.ArgumentParser(prog="stockroom")
    result.add_argument("--file", default="stock.json")
    commands = result.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add")
    add.add_argument("name")
    add.add_argument("quantity", type=int)
    add.add_argument("--location", default="")
    remove = commands.add_parser("remove")
    remove.add_argument("name")
    remove.add_argument("quantity", type=int)
    show = commands.add_parser("list")
    show.add_argument("--low", type=int)
    return result


def run(options):
    store = Store(options.file)
    if options.command == "add":
        store.add(options.name, options.quantity, options.location)
    elif options.command == "remove":
        store.remove(options.name, options.quantity)
    else:
        chosen = store.low(options.low) if options.low is not None else store.items.values()
        for item in chosen:
            print(f"{item.name}\t{item.quantity}\t{item.location}")
    store.save()


def main(argv):
    options = parser().parse_args(argv)
    try:
        run(options)
    except StockError as error:
        print(f"stockroom: {error}")
        return 1
    return 0
