"""Where a job's time goes."""

import time


class Clock:
    """Durations of successive steps."""

    def __init__(self) -> None:
        self.laps_s: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Notes the time since the last lap, or since the start, under a name."""
        now = time.monotonic()
        self.laps_s[name] = round(now - self._last, 4)
        self._last = now
