from web.app import App, Response
from web.routes import RouteError

__all__ = ["App", "Response", "RouteError"]
