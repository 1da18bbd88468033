from limits.limiter import Limiter

__all__ = ["Limiter"]
