"""The stock file."""

import json
import os

from stockroom.items import Item


class StockError(Exception):
    pass


class Store:
    def __init__(self, path):
        self.path = path
        self.items = {}
        if os.path.exists(path):
            with open(path) as file:
                for data in json.load(file)["items"]:
                    self.items[data["name"]] = Item.from_json(data)

    def save(self):
        with open(self.path, "w") as file:
            json.dump({"items": [item.to_json() for item in self.items.values()]}, file, indent=1)

    def add(self, name, quantity, location=""):
        if quantity < 1:
            raise StockError("a quantity must be at least 1")
        self.items[name] = Item(name, quantity, location)

    def remove(self, name, quantity):
        item = self.items.get(name)
        if item is None:
            raise StockError(f"no such item: {name}")
        item.quantity -= quantity
        if item.quantity < 0:
            raise StockError(f"only {item.quantity + quantity} of {name} left")

    def low(self, limit):
        return [item for item in self.items.values() if item.quantity < limit]
