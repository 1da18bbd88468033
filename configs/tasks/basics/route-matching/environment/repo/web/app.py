"""The application: handlers by route."""

from dataclasses import dataclass, field

from web.router import Router


@dataclass
class Response:
    status: int = 200
    body: str = ""
    headers: dict = field(default_factory=dict)


class App:
    def __init__(self):
        self.router = Router()

    def route(self, pattern, methods=("GET",), name=None):
        def register(handler):
            self.router.add(pattern, handler, tuple(methods), name or handler.__name__)
            return handler

        return register

    def url_for(self, name, **parameters):
        return self.router.url_for(name, **parameters)

    def handle(self, method, path):
        """Answer a request. A handler gets the parameters by name and returns text or a Response."""
        found = self.router.find(method, path.split("?")[0])
        if found is None:
            return Response(404, "not found")
        route, parameters = found
        answer = route.handler(**parameters)
        return answer if isinstance(answer, Response) else Response(200, answer)
