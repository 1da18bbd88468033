"""What is in stock."""

from dataclasses import dataclass


@dataclass
class Item:
    name: str
    quantity: int = 0
    location: str = ""

    def to_json(self):
        return {"name": self.name, "quantity": self.quantity}

    @classmethod
    def from_json(cls, data):
        return cls(data["name"], data["quantity"])
