"""The routes of a TTS server for uploaded voices. It knows no registry."""

import contextlib
import email.utils
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx

from speaker_registry.connecting import connecting, no_answer
from speaker_registry.deadlines import Deadlines
from speaker_registry.environment import parse_api_key, parse_url
from speaker_registry.errors import InvalidRequest, PermissionDenied, Unavailable
from speaker_registry.pools import close_failed_tunnels
from speaker_registry.session import TRANSPORT_ERRORS, no_cookies

MAX_CLIP_BYTES = 10 * 1024**2
"""The largest clip that vLLM-Omni and SGLang-Omni accept."""
_MAX_ANSWER_BYTES = 16 * 1024**2
"""A list of a thousand voices with long transcripts is smaller than this."""
_PATH = "/v1/audio/voices"
_CALL_SECONDS = 60.0
_MAX_REASON = 300
_REFUSE_ONE_VOICE = frozenset({400, 415, 422})
_TELL_OF_AN_UPLOAD = frozenset({"success", "name"})
"""vLLM-Omni answers an upload with `success` and the voice, and SGLang-Omni with the fields of the voice."""
Part = tuple[str | None, str | bytes] | tuple[str, bytes, str]
"""A part of a form as httpx takes it: a text without a file name, or a file with its type."""


class UploadRefused(Exception):
    """The server does not accept one voice. The message is what the server says."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A voice that was uploaded to a server."""

    consent: str
    created_at: float
    """Time of the upload in Unix seconds, by the clock of the server."""


@dataclass(frozen=True, slots=True)
class ServerVoices:
    """The voices that a server offers."""

    names: frozenset[str]
    """All names in lower case, including those that are built in."""
    uploaded: Mapping[str, Uploaded]
    """The uploaded voices by their names in lower case."""
    now: float
    """Time of the answer in Unix seconds, by the clock of the server."""


class SpeechServer:
    """A TTS server that takes uploads.

    All methods raise `Unavailable` if the server does not answer in time, `PermissionDenied` or
    `InvalidRequest` if it refuses every upload, and `InvalidRequest` with `is_foreign` if what answers is no
    TTS server, for example a proxy that shows a page.

    Args:
        transport: httpx transport to use instead of the network.

    Raises:
        ValueError: The address or the API key is malformed, or httpx cannot use an environment variable.
    """

    def __init__(self, url: str, api_key: str = "", transport: httpx.BaseTransport | None = None) -> None:
        self.url = parse_url(url)
        headers = {"accept-encoding": "identity"}  # a compressed answer could expand without bound
        if key := parse_api_key(api_key):
            headers["authorization"] = f"Bearer {key}"
        self._http = connecting(
            lambda: httpx.Client(
                headers=headers, timeout=_CALL_SECONDS, transport=transport, cookies=no_cookies()
            )
        )
        self._deadlines = Deadlines(time.monotonic)
        self._deadlines.apply_to(self._http)
        close_failed_tunnels(self._http)

    def voices(self) -> ServerVoices:
        """Return the voices that the server offers now."""
        answer = self._checked(*self._send("GET", _PATH))
        try:
            document = _document(answer)
            uploaded = {str(one["name"]).lower(): _uploaded(one) for one in document["uploaded_voices"]}
            names = frozenset(str(one).lower() for one in document["voices"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise self._strange(200, answer, "a list of uploaded voices") from None
        return ServerVoices(names | uploaded.keys(), uploaded, answer.moment)

    def upload(self, parts: Mapping[str, Part]) -> None:
        """Upload a voice. Raises `UploadRefused` if the server does not accept this one."""
        status, answer = self._send("POST", _PATH, files=dict(parts))
        # A proxy that limits the size of requests answers 413 with its own page, and lets smaller clips pass.
        if status == 413 or (status in _REFUSE_ONE_VOICE and _is_document(answer)):
            raise UploadRefused(_reason(answer.content))
        document = _document(self._checked(status, answer))
        if document.get("success", True) is not True:
            raise UploadRefused(_reason(answer.content))
        if not document.keys() & _TELL_OF_AN_UPLOAD:
            raise self._strange(status, answer, "the answer to an upload")

    def delete(self, name: str) -> None:
        """Delete a voice. Nothing happens if there is none of this name."""
        status, answer = self._send("DELETE", f"{_PATH}/{quote(name, safe='')}")
        if status == 404:
            self._check_document(status, answer)
        else:
            self._checked(status, answer)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, method: str, path: str, **content: Any) -> tuple[int, "_Answer"]:
        """Send a request, and return the status and the content of its answer."""
        deadline = time.monotonic() + _CALL_SECONDS
        try:
            with (
                self._deadlines.until(deadline),
                self._http.stream(method, self.url + path, **content) as response,
            ):
                kind, location = (response.headers.get(name, "") for name in ("content-type", "location"))
                answer = _Answer(self._read(response), kind, location, _moment(response))
                return response.status_code, answer
        except TRANSPORT_ERRORS as error:
            raise no_answer(self._http, self.url, error) from None

    def _read(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise InvalidRequest(f"{self.url} answers with a compressed body, which was not asked for")
        content = bytearray()
        for piece in response.iter_bytes():
            content += piece
            if len(content) > _MAX_ANSWER_BYTES:
                raise Unavailable(f"{self.url} answers with more than {_MAX_ANSWER_BYTES} bytes")
        return bytes(content)

    def _checked(self, status: int, answer: "_Answer") -> "_Answer":
        message = f"{self.url} answers {status}: {_reason(answer.content)}"
        if status in {408, 429} or status >= 500:
            raise Unavailable(message)
        self._check_document(status, answer)
        if status == 200:
            return answer
        if status in {401, 403}:
            raise PermissionDenied(message)
        # Some proxies answer 404 in JSON while no server is behind them.
        raise _refusal(message, is_foreign=status == 404)

    def _check_document(self, status: int, answer: "_Answer") -> None:
        """Check that the TTS server has answered: a proxy in between may show a page with any status."""
        if not _is_document(answer):
            raise self._strange(status, answer, "a JSON object")

    def _strange(self, status: int, answer: "_Answer", expected: str) -> InvalidRequest:
        """Return the error for an answer that is not the expected one, which names where a redirect leads."""
        redirect = f" and the location {answer.location[:200]!a}" if answer.location else ""
        return _refusal(
            f"{self.url}{_PATH} answers {status} with the content type {answer.content_type[:80]!a}{redirect}"
            f", which is not {expected}: {_shown(answer.content)}; accepted: an answer of vLLM-Omni or "
            "SGLang-Omni",
            is_foreign=True,
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    content: bytes
    content_type: str
    location: str
    moment: float
    """Time of the answer in Unix seconds."""


def _document(answer: _Answer) -> dict[str, Any]:
    """Return the JSON object in an answer. Raises `ValueError` or `RecursionError` if it is anything else."""
    document = json.loads(answer.content)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _is_document(answer: _Answer) -> bool:
    try:
        _document(answer)
    except (ValueError, RecursionError):
        return False
    return True


def _refusal(message: str, *, is_foreign: bool) -> InvalidRequest:
    """Return the error for an answer that a repetition of the request would probably get again."""
    error = InvalidRequest(message)
    error.is_foreign = is_foreign
    return error


def _uploaded(document: Mapping[str, Any]) -> Uploaded:
    # Both are null if another client has uploaded the voice without them.
    return Uploaded(str(document["consent"] or ""), float(document["created_at"] or 0))


def _moment(response: httpx.Response) -> float:
    """Return the time in an answer's `Date` header (Unix seconds), or else the local time."""
    with contextlib.suppress(KeyError, ValueError, TypeError, OverflowError):
        return email.utils.parsedate_to_datetime(response.headers["date"]).timestamp()
    return time.time()


def _reason(answer: bytes) -> str:
    """Return the message in an error answer, which has OpenAI's or FastAPI's format, or a text in `error` or
    `message`.
    """
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        document = json.loads(answer)
        found = document.get("error") or document.get("detail") or document.get("message")
        if message := found.get("message") if isinstance(found, dict) else found:
            return str(message)[:_MAX_REASON]
    return _shown(answer)


def _shown(answer: bytes) -> str:
    return repr(answer[:_MAX_REASON].decode(errors="replace"))
