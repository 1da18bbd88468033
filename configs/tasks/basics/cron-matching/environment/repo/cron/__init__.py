from cron.expression import CronError, matches

__all__ = ["CronError", "matches"]
