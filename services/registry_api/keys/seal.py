"""Seals data that browsers store for the registry, so that they can neither read nor change it. This module
knows no requests.

All API processes share one secret, which the first process stores in Redis. The secret belongs to a
generation of the view, as do the ids of the sessions that ended early, and no process keeps it in memory. So
once Redis has lost such ids, or was rolled back to a time before them, no earlier data can be opened, and
people sign in again. The secret alone gives no access, because the sealed data are API keys, which cannot be
made from the secret.
"""

import base64
import hmac
import secrets

from cryptography.fernet import Fernet, InvalidToken

from services.shared.view.generation import Generation
from services.shared.view.keys import ended_session_key, seal_secret_key

SEALED_SECONDS = 12 * 3600
"""Sealed data that are older than this cannot be opened."""
_ENDED_SECONDS = 24 * 3600
"""An ended session is remembered for this long. Longer than sealed data can be opened, because an API process
whose clock is behind opens them for that much longer.
"""


class Seal:
    """Seals and opens data. Safe to use from several threads. Every method may raise `Unavailable`."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def seal(self, data: bytes, session_id: str = "") -> str:
        """Return the data encrypted and signed, as text for a cookie.

        Args:
            session_id: the session whose end also ends the sealed data. Empty if there is none.
        """
        sealed = _fernet(self._secret(), session_id).encrypt(data).decode()
        return f"{session_id}.{sealed}"

    def open(self, text: str, max_seconds: int | None = SEALED_SECONDS) -> bytes | None:
        """Return the data, or None if it was not sealed here, or too long ago, or its session has ended.

        The clock of the process that sealed the data may be up to a minute ahead of ours. Fernet allows that.

        Args:
            max_seconds: None opens the data whenever they were sealed, and by whatever clock.
        """
        session_id, _, sealed = text.rpartition(".")
        # Both are read at once: ids that are missing because Redis lost them must not meet a former secret.
        secret, ended = self._generation.read(
            lambda pipeline, generation: (
                pipeline.get(seal_secret_key(generation)),
                pipeline.exists(ended_session_key(generation, session_id)),
            )
        )
        if secret is None or ended:
            return None
        try:
            return _fernet(secret, session_id).decrypt(sealed.encode(), ttl=max_seconds)
        except InvalidToken:
            return None

    def end(self, session_id: str) -> None:
        """Open nothing any more that was sealed for a session."""
        self._generation.read(
            lambda pipeline, generation: pipeline.set(
                ended_session_key(generation, session_id), 1, ex=_ENDED_SECONDS
            )
        )

    def _secret(self) -> str:
        """Return the secret, and make it if there is none."""
        [known] = self._generation.read(
            lambda pipeline, generation: pipeline.get(seal_secret_key(generation))
        )
        if known is not None:
            return str(known)
        made = secrets.token_urlsafe(32)
        [known] = self._generation.read(
            lambda pipeline, generation: pipeline.set(seal_secret_key(generation), made, nx=True, get=True)
        )
        return str(known or made)  # another process may have made one meanwhile


def _fernet(secret: str, session_id: str) -> Fernet:
    """Return what seals the data of a session. Data cannot be opened under the id of another session."""
    key = hmac.digest(secret.encode(), session_id.encode(), "sha256")
    return Fernet(base64.urlsafe_b64encode(key))
