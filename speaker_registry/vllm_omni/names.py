"""The names of the registry's voices inside a server.

A server has no versions. Each version is therefore a voice of its own there, `wren@3`, which never changes:
a request that has begun with one version ends with it.
"""

from speaker_registry.manifests import ManifestEntry
from speaker_registry.names import key_of_name


def bare_name(entry: ManifestEntry) -> str:
    """Return the name as vLLM-Omni looks it up, when `pin` has put it in the registry's spelling."""
    return key_of_name(entry.voice)


def versioned_name(entry: ManifestEntry) -> str:
    """Return the name of exactly this version, such as `wren@3`."""
    return f"{bare_name(entry)}@{entry.version}"
