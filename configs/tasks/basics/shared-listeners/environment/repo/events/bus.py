"""A small publish-and-subscribe bus."""


class Handler:
    """A function and the tags it was registered with."""

    def __init__(self, function, tags=[]):
        self.function = function
        self.tags = tags

    def tag(self, name):
        self.tags.append(name)
        return self


class Bus:
    handlers = {}

    def __init__(self, name="bus"):
        self.name = name
        self.history = []

    def on(self, topic, function):
        handler = Handler(function)
        self.handlers.setdefault(topic, []).append(handler)
        return handler

    def off(self, topic, handler):
        self.handlers[topic].remove(handler)

    def emit(self, topic, payload=None):
        """Call every handler of the topic in order of registration; how many were called."""
        self.history.append(topic)
        called = list(self.handlers.get(topic, []))
        for handler in called:
            handler.function(payload)
        return len(called)
