from notes.keeper import Keeper

__all__ = ["Keeper"]
