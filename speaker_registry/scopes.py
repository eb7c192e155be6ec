"""What an API key may be for: on the wire, in the rules of routes, and on the command line, which must not
load the schemas for it.
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
"""`engine`: all that a TTS server asks for."""

SCOPES: tuple[str, ...] = get_args(Scope)
