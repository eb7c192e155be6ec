"""Checks the key of a request before anything reads its body, and counts requests whose bodies arrive slowly.

Pure ASGI.
"""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.registry_api.access.authentication import Access
from services.registry_api.access.rules import authenticate, client_address
from services.registry_api.protocol.error_answers import render
from services.registry_api.protocol.routing import SIGN_IN
from services.registry_api.serving.arriving_bodies import ArrivingBody
from services.registry_api.serving.recheck import set_check
from speaker_registry.errors import SpeakerRegistryError

_OF_BODIES = frozenset({b"content-length", b"transfer-encoding"})


class KeyFirst:
    """Middleware that refuses a request with a body unless its key is valid.

    A body may arrive slowly. Reading it raises `RateLimited` if too many bodies of the namespace are
    arriving. The key or its session may end meanwhile, so `limits` has it checked again afterwards.

    Requests without a body are left to the rules of their routes, because some routes need no key. The form
    that signs a person in has the key in its body. Such a body is short (see `limits.MAX_JSON_BYTES`), and
    while it arrives it is counted for the client's address, and for all addresses together, instead of a
    namespace.
    """

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        set_check(None)  # the task may have begun in the context of the request before
        if scope["type"] != "http" or not _has_body(scope):
            return await self._app(scope, receive, send)
        arriving = self._access.arriving_requests
        if (scope["method"], scope["path"]) == SIGN_IN:
            with ArrivingBody(receive, arriving.hold_for_address(client_address(scope))) as body:
                return await self._app(scope, body, send)
        try:
            await authenticate(self._access, scope)
        except SpeakerRegistryError as error:
            return await render(Request(scope), error)(scope, receive, send)
        with ArrivingBody(receive, arriving.hold(scope["caller"], scope["namespace"])) as body:
            return await self._app(scope, body, send)


def _has_body(scope: Scope) -> bool:
    return any(name in _OF_BODIES and value != b"0" for name, value in scope["headers"])
