"""The client for asyncio, a thin layer that executes plans with httpx.

`client` has the same methods in blocking form and documents them. The two clients are separate packages
because most programs need only one of them, and importing asyncio takes time.
"""

from speaker_registry.async_client.aliases import AsyncAliases
from speaker_registry.async_client.artifacts import AsyncArtifacts
from speaker_registry.async_client.clips import AsyncClips
from speaker_registry.async_client.encoders import AsyncEncoders
from speaker_registry.async_client.jobs import AsyncJobs
from speaker_registry.async_client.keys import AsyncKeys
from speaker_registry.async_client.service import AsyncService
from speaker_registry.async_client.voices import AsyncVoices


class AsyncRegistryClient(
    AsyncVoices, AsyncArtifacts, AsyncClips, AsyncAliases, AsyncJobs, AsyncEncoders, AsyncKeys, AsyncService
):
    """A client for one speaker registry, for asyncio.

    It has the same arguments, methods and errors as `RegistryClient`, which documents them. Methods are
    awaited, and lists are read with `async for`.
    """
