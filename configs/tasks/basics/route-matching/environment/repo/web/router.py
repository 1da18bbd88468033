"""Finds the route for a request."""

from web.routes import Route, RouteError


class Router:
    def __init__(self):
        self.routes = []

    def add(self, pattern, handler, methods, name):
        self.routes.append(Route(pattern, handler, methods, name))

    def find(self, method, path):
        """(route, parameters), or None."""
        for route in self.routes:
            parameters = route.match(path)
            if parameters is not None and method in route.methods:
                return route, parameters
        return None

    def url_for(self, name, **parameters):
        for route in self.routes:
            if route.name == name:
                return route.build(parameters)
        raise RouteError(f"no route is named {name}")
