"""The blocking client, a thin layer that executes plans with httpx.

Each subject of the registry has a class with its calls, and `executor` executes their plans. The modules
`calls`, `fetching`, `waiting` and `exchange` define which requests a call makes and what the answers mean.
`async_client` has the same methods for asyncio.
"""

from speaker_registry.client.aliases import Aliases
from speaker_registry.client.artifacts import Artifacts
from speaker_registry.client.clips import Clips
from speaker_registry.client.encoders import Encoders
from speaker_registry.client.jobs import Jobs
from speaker_registry.client.keys import Keys
from speaker_registry.client.service import Service
from speaker_registry.client.voices import Voices


class RegistryClient(Voices, Artifacts, Clips, Aliases, Jobs, Encoders, Keys, Service):
    """A client for one speaker registry.

    A client can be shared between threads. Call `close` when done, or use the client as a context manager.

    Args:
        url: Address of the registry. Defaults to the environment variable `SPEAKER_REGISTRY_URL`.
        api_key: Defaults to the environment variable `SPEAKER_REGISTRY_API_KEY`.
        namespace: Namespace to use with an API key that is valid in every namespace. Defaults to the
            environment variable `SPEAKER_REGISTRY_NAMESPACE`, and else to `default`.
        timeout: Maximum duration of one call in seconds, including all attempts and the pauses between them.
            The `wait` of a call is added to it.
        retries: Number of further attempts after status 408, 429 or 5xx, or after a lost connection.
        cache: Cache for fetched artifacts. By default each client has a cache of its own. Several clients can
            share one, and None turns caching off.
        transport: httpx transport to use instead of the network.
        clock: Replaces `time.monotonic`, for tests.
        sleep: Replaces `time.sleep`, for tests.
        on_pause: Called before each pause that the registry asks for (`Retry-After`), with the error and the
            seconds of the pause. It may be called by several threads at once.

    Raises:
        ValueError: The URL, the API key or the namespace is malformed, or a number is not accepted. Or a
            variable that httpx reads cannot be used: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY` or
            `SSL_CERT_FILE`.

    Every method raises subclasses of `SpeakerRegistryError`. It raises `Unavailable` if the registry did not
    answer.
    """
