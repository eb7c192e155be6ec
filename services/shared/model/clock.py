"""Time, random numbers and new ids, as one object that tests can replace. No other code reads a clock or
makes random numbers.
"""

import random
import secrets
import time

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock that also counts while the machine is suspended, where the system has one."""


class Clock:
    """The system's clock and random numbers."""

    def now(self) -> float:
        """Return the time in Unix seconds. It must not decide the order of changes."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds of a monotonic clock, for deadlines within this process."""
        return time.monotonic()

    def since_boot(self) -> float:
        """Return seconds since boot, including the time for which the machine was suspended. It is used for
        deadlines that also pass during that time.
        """
        return time.clock_gettime(_SINCE_BOOT)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def up_to(self, seconds: float) -> float:
        """Return a random number of seconds, so that several callers do not retry at the same moment."""
        return random.uniform(0, seconds)  # noqa: S311 - no secret depends on it

    def new_id(self) -> str:
        """Return 32 hex digits in the layout of a UUIDv7 (RFC 9562). Ids sort by time, to the millisecond."""
        milliseconds = int(self.now() * 1000) & (2**48 - 1)
        noise = secrets.randbits(74)
        value = milliseconds << 80 | 0x7 << 76 | (noise >> 62) << 64 | 0b10 << 62 | noise & (2**62 - 1)
        return f"{value:032x}"
