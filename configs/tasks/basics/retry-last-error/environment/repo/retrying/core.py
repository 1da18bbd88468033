"""Try again, a little later each time."""

import functools
import time


def retry(attempts=3, delay=0.1, max_delay=5.0, on=(Exception,), sleep=time.sleep):
    """Call the decorated function up to `attempts` times, until it does not raise one of `on`.

    Between attempts it sleeps `delay` seconds, then twice that, and so on, but never more than `max_delay`.
    The last attempt's error is raised to the caller.
    """

    def decorate(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            wait = delay
            for attempt in range(attempts + 1):
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    if not isinstance(error, on):
                        continue
                    sleep(wait)
                    wait = min(wait, max_delay) * 2

        return call

    return decorate
