"""Errors on the wire. Only this module maps errors to HTTP statuses and renders them.

Errors have OpenAI's envelope. On `/v1/audio/*` it is written as vLLM-Omni does, with an integer `code` and
our code in `reason`. Clients that accept `application/problem+json` get RFC 9457. Exception text, paths and
bucket names are never shown.
"""

import math
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from services.registry_api.protocol.headers import safe_headers
from services.registry_api.protocol.parameters import explain
from services.registry_api.protocol.signals import ERROR_CODE, route_of
from speaker_registry import errors
from speaker_registry.artifact import canonical_json
from speaker_registry.errors import SpeakerRegistryError

log = structlog.get_logger()

STATUS: dict[type[SpeakerRegistryError], int] = {
    errors.SpeakerRegistryError: 500,
    errors.InvalidRequest: 400,
    errors.UnsupportedAudio: 415,
    errors.PayloadTooLarge: 413,
    errors.EmbeddingWidthMismatch: 422,
    errors.InvalidArtifact: 422,
    errors.IdempotencyKeyReused: 422,
    errors.InvalidApiKey: 401,
    errors.PermissionDenied: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.PreconditionFailed: 412,
    errors.QuotaExceeded: 429,
    errors.RateLimited: 429,
    errors.Unavailable: 503,
    errors.WorkerError: 500,
}
"""HTTP statuses by error class. A class that is not listed has the status of its parent class."""

_NATIVE_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    412: "conflict_error",
    429: "rate_limit_error",
}
_COMPATIBLE_TYPES = {
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    429: "RateLimitError",
}
_COMPATIBLE_AS_400 = (
    errors.VoiceExists,
    errors.UnsupportedAudio,
    errors.EmbeddingWidthMismatch,
    errors.InvalidArtifact,
    errors.IdempotencyKeyReused,
    errors.QuotaExceeded,
)
"""Errors with status 400 on `/v1/audio/*`: vLLM-Omni answers 400 to every upload it refuses."""


def status_of(error: SpeakerRegistryError, *, compatible: bool) -> int:
    """Return the HTTP status of an error, on vLLM-Omni's routes (`compatible`) or on our own."""
    if compatible and isinstance(error, _COMPATIBLE_AS_400):
        return 400
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def render(request: Request, error: SpeakerRegistryError, status: int | None = None) -> Response:
    """Render an error as the answer to `request`."""
    compatible = request.url.path.startswith("/v1/audio/")
    status = status or status_of(error, compatible=compatible)
    headers = _headers(error, status)
    request_id = request.scope.get("request_id")
    request.scope[ERROR_CODE] = error.code
    if "application/problem+json" in request.headers.get("accept", ""):
        return JSONResponse(
            _problem(request, error, status, request_id),
            status_code=status,
            headers=headers,
            media_type="application/problem+json",
        )
    content = envelope(error, status, compatible=compatible, request_id=request_id)
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def envelope(
    error: SpeakerRegistryError, status: int, *, compatible: bool = False, request_id: str | None = None
) -> bytes:
    """Render an error in OpenAI's envelope, as JSON."""
    body = {
        "message": error.message,
        "type": type_of(status, compatible=compatible),
        "param": error.param,
        "code": status if compatible else error.code,
        **({"reason": error.code} if compatible else {}),
        "request_id": request_id,
    }
    return canonical_json({"error": body}).encode()


def _headers(error: SpeakerRegistryError, status: int) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if status == HTTPStatus.CONFLICT:
        headers["x-should-retry"] = "true" if error.retryable else "false"
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="speaker registry"'
    return {**headers, **retry_after(error)}


def retry_after(error: SpeakerRegistryError) -> dict[str, str]:
    """Return the header that says when the request may succeed, or nothing if the error does not know."""
    if error.retry_after_seconds is None:
        return {}
    return {"Retry-After": str(math.ceil(error.retry_after_seconds))}


def type_of(status: int, *, compatible: bool) -> str:
    """Return the `type` of errors with this status, by its name in vLLM-Omni if `compatible`."""
    if compatible:
        fallback = "InternalServerError" if status >= 500 else "BadRequestError"
        return _COMPATIBLE_TYPES.get(status, fallback)
    return _NATIVE_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _problem(request: Request, error: SpeakerRegistryError, status: int, request_id: Any) -> dict[str, Any]:
    return {
        "type": f"urn:speaker-registry:error:{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message,
        "instance": request.url.path,
        "code": error.code,
        "param": error.param,
        "request_id": request_id,
    }


def add_handlers(app: FastAPI, note: Callable[[Request, SpeakerRegistryError], None]) -> None:
    """Make `app` answer every failure with `render`.

    The handlers are coroutines, because others would need a thread, which a failing server may not get.

    Args:
        note: called in the event loop with each error of the registry, before it is rendered.
    """

    @app.exception_handler(SpeakerRegistryError)
    async def _registry_error(request: Request, error: SpeakerRegistryError) -> Response:
        note(request, error)
        if status_of(error, compatible=False) >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning(
                "request.failed", code=error.code, reason=error.message, route=route_of(request.scope)
            )
        return render(request, error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        return render(request, explain(request, error))

    @app.exception_handler(ClientDisconnect)
    async def _disconnected(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=HTTPStatus.BAD_REQUEST)  # the client is gone

    app.exception_handler(HTTPException)(_render_http)
    app.exception_handler(Exception)(_render_crash)


async def _render_http(request: Request, error: HTTPException) -> Response:
    if isinstance(error.__cause__, SpeakerRegistryError):  # ours: about a JSON body
        return render(request, error.__cause__)
    allowed = _allowed_methods(request) if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else ""
    response = render(request, _from_http(request, error, allowed), error.status_code)
    response.headers.update(error.headers or {})
    if allowed:
        response.headers["Allow"] = allowed
    return response


async def _render_crash(request: Request, error: Exception) -> Response:
    log.error("request.crashed", route=route_of(request.scope), exc_info=error)
    return render_crash(request)


def render_crash(request: Request) -> Response:
    """Render the answer to a request at which the server has failed. The connection ends after it."""
    message = "An internal error occurred. Operators find it in the logs by the request id."
    response = render(request, SpeakerRegistryError(message))
    # Crashes are answered outside `limits.RequestIds`, which sets this header on all other answers.
    response.headers["X-Request-Id"] = str(request.scope.get("request_id"))
    response.headers["Connection"] = "close"  # the server is about to close it
    response.raw_headers.extend(safe_headers(request.url.path))
    return response


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes with this path. The framework names only those of the first route."""
    methods: set[str] = set()
    for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            methods.add(method)
    return ", ".join(sorted(methods))


def _from_http(request: Request, error: HTTPException, allowed: str) -> SpeakerRegistryError:
    """Return our error for one that the framework raised."""
    if error.status_code == HTTPStatus.NOT_FOUND:
        return errors.NotFound(f"There is no {ascii(request.url.path)[1:-1][:200]} here.")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return errors.InvalidRequest(f"{request.method[:20]} is not supported here; accepted: {allowed}.")
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return errors.InvalidRequest(_fault_of_body(error.__cause__), param="body")
    return errors.InvalidRequest(str(error.detail))


def _fault_of_body(cause: BaseException | None) -> str:
    """Describe why a body was not even parsed, from the error that the framework caught meanwhile."""
    if isinstance(cause, RecursionError):
        return (
            "The body is nested too deeply to be read; accepted: JSON with a few levels of lists and objects."
        )
    if isinstance(cause, ValueError) and not isinstance(cause, UnicodeError):  # Python limits the digits
        digits = sys.get_int_max_str_digits()
        return (
            f"The body has a number that is too long to be read; accepted: integers of up to {digits} digits."
        )
    return "The body cannot be read; accepted: JSON in UTF-8."
