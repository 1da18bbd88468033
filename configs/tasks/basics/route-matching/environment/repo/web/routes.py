"""Patterns such as `/users/<int:id>/files/<path:rest>`."""

import re

_PART = re.compile(r"<(?:(\w+):)?(\w+)>")


class RouteError(Exception):
    pass


class Route:
    def __init__(self, pattern, handler, methods, name):
        self.pattern = pattern
        self.handler = handler
        self.methods = methods
        self.name = name
        self.parts = pattern.strip("/").split("/")

    def match(self, path):
        """The parameters, or None where the path does not fit."""
        pieces = path.strip("/").split("/")
        if len(pieces) != len(self.parts):
            return None
        parameters = {}
        for part, piece in zip(self.parts, pieces):
            found = _PART.fullmatch(part)
            if found:
                parameters[found.group(2)] = piece
            elif part != piece:
                return None
        return parameters

    def build(self, parameters):
        return _PART.sub(lambda found: str(parameters.get(found.group(2), "")), self.pattern)
