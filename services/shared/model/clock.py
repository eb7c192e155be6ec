"""Time and new ids, as one object, so that tests can bring their own. Nothing else here reads a clock or
draws lots.
"""

import secrets
import time


class Clock:
    """The real one."""

    def now(self) -> float:
        """Unix seconds. Never decides an order."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds for deadlines within this process."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def new_id(self) -> str:
        """32 hex digits in the layout of a UUIDv7 (RFC 9562): later ones sort later, to the millisecond."""
        milliseconds = int(self.now() * 1000) & (2**48 - 1)
        noise = secrets.randbits(74)
        value = milliseconds << 80 | 0x7 << 76 | (noise >> 62) << 64 | 0b10 << 62 | noise & (2**62 - 1)
        return f"{value:032x}"
