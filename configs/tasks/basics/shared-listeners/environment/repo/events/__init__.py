from events.bus import Bus, Handler

__all__ = ["Bus", "Handler"]
