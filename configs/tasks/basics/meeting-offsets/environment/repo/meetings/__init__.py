from meetings.calendar import Calendar

__all__ = ["Calendar"]
