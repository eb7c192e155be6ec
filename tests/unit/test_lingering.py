"""A connection that is closed while its caller is still sending."""

import asyncio

from services.registry_api.serving.lingering import LingeringTransport


class Deaf(asyncio.Transport):
    """A transport to a client that reads nothing: what was written is never gone, so that `close`
    never ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()

    def is_closing(self) -> bool:
        return False

    def write_eof(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted.set()


def test_who_reads_nothing_is_cut_off_when_the_time_is_up():
    """A client could otherwise hold connections for ever, by asking for much and reading none of it."""

    async def linger() -> None:
        transport = Deaf()
        LingeringTransport(transport, lambda: True, 0.01).close()
        await asyncio.wait_for(transport.aborted.wait(), 5)

    asyncio.run(linger())
