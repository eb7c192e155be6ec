"""The scopes of API keys. The schemas, the access rules of routes and the command line share this list. It is
a module of its own because the command line must not load the schemas for it.
"""

from typing import Literal, get_args

Scope = Literal[
    "voices:read",
    "voices:write",
    "voices:delete",
    "artifacts:read",
    "audio:read",
    "jobs:read",
    "jobs:write",
    "engine",
    "admin",
]
"""One permission of an API key. `engine` covers every request that a TTS server makes."""

SCOPES: tuple[str, ...] = get_args(Scope)
