"""The tiny policy, for every test of the trainer."""

from tests._tiny import tiny_policy

__all__ = ["tiny_policy"]
