from retrying.core import retry

__all__ = ["retry"]
