"""Tests of faulty requests. Each is answered by a 4xx that names the value and what is accepted, nothing of
it is stored, and the existing voices are served as before.
"""

import contextlib
import io
import socket
import ssl
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest
from structlog.testing import capture_logs

from services.registry_api.serving import refusals
from services.registry_api.serving.limits import BodyTimeouts
from services.shared.telemetry.logs import LogThrottle
from speaker_registry.errors import InvalidAudio
from tests.integration.api import raw
from tests.integration.api.conftest import Start
from tests.integration.api.raw import CONTENT_TYPE, field, file, form
from tests.integration.api.registry import CLIP, EMBEDDING, Registry
from tests.queue_workers import wait_until
from tests.unit.audio import clips
from tests.unit.audio.bad_clips import BAD, BadClip

GOOD = "good"
VOICES = "/v1/audio/voices"
MIB = 1024**2
ACCEPTED_CLIP = "Accepted: clips of up to 10485760 bytes (10 MiB); the form's other fields do not count."
ACCEPTED_FORM = (
    "This counts the whole form. Accepted: a clip of up to 10485760 bytes (10 MiB), and 262144 bytes for all "
    "else in the form."
)
FORMS = "multipart/form-data, or application/x-www-form-urlencoded if the form has no file"


@pytest.fixture(autouse=True, scope="module")
def good(registry: Registry) -> str:
    """Register a voice that must outlive all of these requests."""
    registry.ready(GOOD)
    return registry.file(GOOD).headers["ETag"]


@pytest.fixture(autouse=True)
def nothing_is_stored(registry: Registry, good: str) -> Iterator[None]:
    before = registry.stored()
    yield
    assert registry.stored() == before
    served = registry.file(GOOD)
    assert (served.status_code, served.headers["ETag"]) == (200, good)


def check(
    response: httpx.Response | raw.Answer,
    says: str,
    *,
    status: int = 400,
    code: str = "invalid_request",
    param: str | None = None,
) -> None:
    """Check an error's status, code, parameter and message. `says` holds words of the
    message with `…` between them.
    """
    found = response.error if isinstance(response, raw.Answer) else response.json()["error"]
    actual = response.status if isinstance(response, raw.Answer) else response.status_code
    assert (actual, found.get("reason", found["code"]), found["param"]) == (status, code, param), found
    for part in says.split("…"):
        assert part in found["message"]


def post(registry: Registry, body: bytes, content_type: str = CONTENT_TYPE["Content-Type"]) -> httpx.Response:
    return registry.client.post(VOICES, content=body, headers={"Content-Type": content_type})


def whole_form(**changes: str | bytes | None) -> bytes:
    """Return a valid upload with the changes applied; None removes a field."""
    values: dict[str, str | bytes | None] = {
        "name": "new",
        "consent": "cons_1",
        "audio_sample": CLIP,
        **changes,
    }
    parts = [
        file(name, value) if name == "audio_sample" and isinstance(value, bytes) else field(name, value)
        for name, value in values.items()
        if value is not None
    ]
    return form(*parts)


def upload_head(length: int, *lines: str) -> bytes:
    content_type = f"Content-Type: {CONTENT_TYPE['Content-Type']}"
    return raw.head("POST", VOICES, *lines, f"Content-Length: {length}", content_type)


# -- clips


@pytest.mark.parametrize("mark", [b"APETAGEX", b"ID3\x04\0\0\0\0\0\0", b"ID3", b"TAG"], ids=repr)
def test_a_tag_that_breaks_off_is_refused(registry: Registry, mark: bytes):
    """A clip with a truncated tag is refused. The tag's flags and lengths follow its mark, where such a file
    has nothing.
    """
    for size in (*range(len(mark), len(mark) + 33), 128, 129):
        response = registry.post_voice("new", clip=(mark + bytes(200))[:size])
        check(response, "", code="unsupported_audio", param="audio_sample")


ONE_OF_EACH_ERROR = list({clip.error: clip for clip in reversed(BAD)}.values())


@pytest.mark.parametrize("clip", ONE_OF_EACH_ERROR, ids=str)
def test_a_clip_that_cannot_serve_is_refused(registry: Registry, clip: BadClip):
    """A clip that cannot be used is refused. All files are named `.wav`. The decoder's own test covers every
    bad clip.
    """
    response = registry.post_voice("new", clip=clip.build())
    code = clip.error.code
    check(response, clip.says, code=code, param="audio_sample")


def test_a_zip_named_wav_is_called_what_it_is(registry: Registry):
    """The error for a ZIP file named .wav says that it is a ZIP, even with a real clip inside, so that the
    sender sees at once what went wrong.
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("clip.wav", CLIP)
    response = registry.post_voice("new", clip=archive.getvalue())
    check(response, "a ZIP archive…Accepted: WAV", code="unsupported_audio", param="audio_sample")


def test_a_bad_clip_leaves_the_good_voice_of_that_name_alone(registry: Registry):
    """A bad clip leaves the existing voice of that name unchanged. vLLM-Omni has deleted the old voice by the
    time it refuses the new one.
    """
    response = registry.post_voice(GOOD, clip=clips.wav(0.4))
    check(response, "(0.4s)", code="audio_too_short", param="audio_sample")


# -- fields


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"name": None}, "name", "Field 'name' is missing or empty; received: audio_sample, consent."),
        ({"name": ""}, "name", "Field 'name' is missing or empty"),
        ({"consent": None}, "consent", "Field 'consent' is missing or empty; received: audio_sample, name."),
        (
            {"consent": None, "concent": "cons_1"},
            "consent",
            "Field 'consent' is missing or empty; received: audio_sample, name; unknown: 'concent'; "
            "accepted: name, consent, audio_sample, speaker_embedding, ref_text, speaker_description.",
        ),
        ({"consent": ""}, "consent", "Field 'consent' is missing or empty"),
        ({"consent": " \t "}, "consent", "Field 'consent' is missing or empty"),
        ({"consent": "x" * 2001}, "consent", "Field 'consent' has 2001 characters; accepted: up to 2000."),
        ({"consent": "a\0b"}, "consent", r"'consent' contains the control character '\x00'; accepted: text."),
        ({"ref_text": "a\x1bb"}, "ref_text", r"'ref_text' contains the control character '\x1b'"),
        ({"ref_text": "x" * 8001}, "ref_text", "Field 'ref_text' has 8001 characters; accepted: up to 8000."),
        ({"speaker_description": "\x08"}, "speaker_description", r"control character '\x08'"),
        (
            {"audio_sample": None},
            "audio_sample",
            "Either 'audio_sample' or 'speaker_embedding' must be provided",
        ),
        ({"audio_sample": None, "speaker_embedding": " "}, "audio_sample", "must be provided"),
        ({"speaker_embedding": EMBEDDING}, "audio_sample", "are mutually exclusive"),
        ({"audio_sample": "text"}, "audio_sample", "Field 'audio_sample' is text; accepted: a file."),
    ],
)
def test_a_field_that_is_missing_empty_or_too_much_is_named(
    registry: Registry, changes: dict[str, Any], param: str, says: str
):
    """The error for a field that is missing, empty or too much names the field, so that
    callers know where to look.
    """
    check(post(registry, whole_form(**changes)), says, param=param)


def test_a_file_field_left_empty_by_a_browser_counts_as_absent(registry: Registry):
    """A file field that a browser left empty counts as absent, because browsers send an empty file without a
    name for it.
    """
    parts = [field("name", "new"), field("consent", "c"), file("audio_sample", b"", filename="")]
    check(post(registry, form(*parts)), "must be provided", param="audio_sample")


@pytest.mark.parametrize("name", ["name", "consent", "ref_text", "speaker_description", "speaker_embedding"])
def test_a_file_where_text_belongs_is_refused(registry: Registry, name: str):
    """A file in the place of a text field is refused, also where it is the second file of the form."""
    body = form(file(name, b"[1]"), *_others(name), file("audio_sample", CLIP))
    check(post(registry, body), f"Field '{name}' is a file; accepted: text.", param=name)


@pytest.mark.parametrize("name", ["name", "consent", "ref_text", "audio_sample", "speaker_embedding"])
def test_a_field_given_twice_is_refused(registry: Registry, name: str):
    """A field that occurs twice is refused. Taking the first or the last would be a guess, and a filter in
    front of the registry may guess otherwise.
    """
    part = file(name, CLIP) if name == "audio_sample" else field(name, "x")
    clip = [] if name == "audio_sample" else [file("audio_sample", CLIP)]
    body = form(part, *_others(name), *clip, part)
    reason = "it would not be clear which of them counts."
    check(
        post(registry, body), f"Field '{name}' is given 2 times; accepted: once, because {reason}", param=name
    )


def _others(name: str) -> list[raw.Part]:
    """Return the required text fields besides this one."""
    return [field(other, "x") for other in ("name", "consent") if other != name]


# -- names

NAMES = {
    "/": "it contains '/'",
    "a/b": "it contains '/'",
    "/etc/passwd": "it contains '/'",
    "..": "it is a path",
    ".": "it is a path",
    "..\\x": r"it contains '\\'",
    "a@b": "it contains '@'",
    "alice@3": "it contains '@'",
    "a\0b": r"it contains '\x00'",
    "a\nb": r"it contains '\n'",
    "a\r\nX-Evil: 1": r"it contains '\r'",
    "a\tb": r"it contains '\t'",
    "a\x1b[2Jb": r"it contains '\x1b'",
    "a\x7fb": r"it contains '\x7f'",
    "a\u2028b": r"it contains '\u2028'",
    "x" * 129: "it has 129 characters",
    "x" * 200: "it has 200 characters",
    "\N{MUSICAL SCORE}" * 200: "it has 200 characters",
    "   ": "it is empty",
    "\N{NO-BREAK SPACE}\N{EM SPACE}": "it is empty",
}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_cannot_be_one_is_refused(registry: Registry, name: str):
    """An invalid name is refused, because names end up in paths, headers, logs and terminals."""
    response = post(registry, whole_form(name=name))
    says = f"Invalid voice name…{NAMES[name]}…Accepted: 1 to 128 characters, without"
    check(response, says, code="invalid_voice_name", param="name")
    assert response.text.isprintable() or "\N{MUSICAL SCORE}" in response.text


@pytest.mark.parametrize(
    "text", [b"\xed\xa0\x80", b"\xff\xfe", b"caf\xe9", b"\xc0\xaf", b"\xf8\x88\x80\x80\x80"], ids=repr
)
@pytest.mark.parametrize("name", ["name", "consent", "ref_text"])
def test_a_text_that_is_not_utf8_is_refused(registry: Registry, name: str, text: bytes):
    """A text that is not UTF-8 is refused, for example with lone surrogates, Latin-1 or overlong slashes.
    Decoded as another text, it would be stored as that one.
    """
    check(post(registry, whole_form(**{name: text})), f"Field '{name}' is not UTF-8.")


@pytest.mark.parametrize("charset", ["utf-7", "utf-16", "latin-1", "unicode_escape", "punycode", "nonsense"])
def test_a_form_in_another_charset_is_refused(registry: Registry, charset: str):
    """A form in another charset is refused. Python would decode any of them, some into lone surrogates, one
    in quadratic time.
    """
    content_type = f"{CONTENT_TYPE['Content-Type']}; charset={charset}"
    response = post(registry, whole_form(name="+2AA-"), content_type)
    check(response, f"charset is '{charset}'; accepted: utf-8.", param="Content-Type")


@pytest.mark.parametrize("query", ["after=%FF", "q=%ED%A0%80", "%FF=1"])
def test_a_query_that_is_not_utf_8_is_refused(registry: Registry, query: str):
    """A query is text, as a path is. Another text would be looked for in place of one that is not valid."""
    answer = raw.ask(registry.port, raw.head("GET", f"/v1/voices?{query}"))
    assert answer.status == 400
    assert "The query is not UTF-8" in answer.error["message"]


BAD_IN_PATHS = [
    ("a%2Fb", "'/' written as %2F"),
    ("..%2f..%2fetc%2fpasswd", "'/' written as %2F"),
    ("good%2Fversions", "'/' written as %2F"),
    ("a%00b", r"it contains '\x00'"),
    ("a%0D%0AX-Evil:%201", r"it contains '\r'"),
    ("%2E%2E", "it is a path"),
    ("a%5Cb", r"it contains '\\'"),
    ("good@1", "it contains '@'"),
    ("x" * 200, "it has 200 characters"),
    ("%20", "it is empty"),
    ("%FF", "The path is not UTF-8"),
    ("%ED%A0%80", "The path is not UTF-8"),
]
OTHER_ROUTES = [
    ("GET", "/v1/voices/{}"),
    ("GET", "/v1/voices/{}/versions"),
    ("GET", "/v1/voices/{}/versions/1/artifacts/qwen3-tts-0.6b/file"),
    ("DELETE", "/v1/audio/voices/{}"),
    ("POST", "/v1/audio/voices/{}/cache"),
]


@pytest.mark.parametrize(
    ("method", "template", "path", "says"),
    [
        *(("DELETE", "/v1/voices/{}", *bad) for bad in BAD_IN_PATHS),
        *((*route, *bad) for route in OTHER_ROUTES for bad in (BAD_IN_PATHS[0], BAD_IN_PATHS[5])),
    ],
)
def test_a_bad_name_in_a_path_is_refused(
    registry: Registry, method: str, template: str, path: str, says: str
):
    """A bad name in a path is refused, also one that would make it another path: deleting `a/b` must not
    delete anything else.
    """
    answer = raw.ask(registry.port, raw.head(method, template.format(path), "Content-Length: 0"))
    assert answer.status == 400
    assert answer.error["code" if "audio" not in template else "reason"].startswith("invalid_")
    assert says in answer.error["message"]


# -- embeddings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", None),
        ("[]", "must be a non-empty list of numbers: it is []"),
        ("{}", "must be a non-empty list of numbers: it is {}"),
        ("null", "must be a non-empty list of numbers: it is null"),
        ("0.5", "must be a non-empty list of numbers: it is 0.5"),
        ('"0.5"', "must be a non-empty list of numbers: it is '0.5'"),
        ("0.5, 0.5", "must be valid JSON: it is '0.5, 0.5'"),
        ("[0.5,]", "must be valid JSON"),
        ("[0.5] [0.5]", "must be valid JSON"),
        ("\ufeff", "must be valid JSON"),
        ("[" * 100_000, "must be valid JSON"),
        (f"[{'9' * 10_000}]", "must be valid JSON"),
        ("[[0.5]]", "must contain only numeric values: element 0 is [0.5]"),
        ('[0.5, "0.5"]', "must contain only numeric values: element 1 is '0.5'"),
        ("[true, false]", "must contain only numeric values: element 0 is true"),
        ("[0.5, null]", "must contain only numeric values: element 1 is null"),
        ("[0.5, NaN]", "values must be finite (no NaN or Inf): element 1 is not"),
        ("[-Infinity]", "values must be finite (no NaN or Inf): element 0 is not"),
        ("[1e400]", "values must be finite (no NaN or Inf): element 0 is not"),
        ("[1e39]", "values must be finite (no NaN or Inf): element 0 is not"),
        (f"[{'9' * 400}]", "values must be finite (no NaN or Inf): element 0 is not"),
        (str([0.5] * 4097), "exceeds maximum length (4096 elements): it has 4097"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_embedding_that_is_none_is_refused(registry: Registry, text: str, says: str | None):
    """An invalid embedding is refused, and the message says what is wrong and where. An
    empty one counts as absent.
    """
    response = post(registry, whole_form(audio_sample=None, speaker_embedding=text))
    if says is None:
        check(response, "must be provided", param="audio_sample")
    else:
        check(response, f"'speaker_embedding' {says}", code="invalid_embedding", param="speaker_embedding")


@pytest.mark.parametrize(("mark", "width"), [("", 1), ("", 192), ("\ufeff", 1023), ("", 4096)])
def test_an_embedding_of_the_wrong_width_is_refused(registry: Registry, mark: str, width: int):
    """An embedding of the wrong width is refused, and the message lists the accepted widths, which depend on
    the profiles of this registry. A byte order mark is ignored.
    """
    response = post(registry, whole_form(audio_sample=None, speaker_embedding=f"{mark}{[0.5] * width}"))
    says = f"The embedding has {width} elements; the required profiles take [1024]."
    check(response, says, code="embedding_dim_mismatch", param="speaker_embedding")


# -- forms


def cut(count: int) -> Callable[[bytes], bytes]:
    return lambda body: body[:-count]


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda _: b"", "is truncated"),
        (lambda _: b"no form at all", "Invalid multipart data"),
        (cut(6), "is truncated"),
        (cut(4), "is truncated"),
        (cut(60), "is truncated"),
        (lambda body: body[: len(body) // 2], "is truncated"),
        (lambda body: body.replace(b"--3f1c", b"--3f1d"), "Invalid multipart data"),
        (lambda body: body.replace(b'; name="consent"', b""), '"name" must be provided'),
        (lambda body: body.replace(b"Content-Disposition", b"Content Disposition"), "Invalid multipart data"),
        (lambda body: body.replace(b"form-data", b"form-data" + b"x" * 5000), "Invalid multipart data"),
    ],
)
def test_a_broken_form_is_refused(registry: Registry, break_it: Callable[[bytes], bytes], says: str):
    """A broken form is refused, even if only its end is missing: the last field might have been longer, or
    not the last.
    """
    body = break_it(form(file("audio_sample", CLIP), field("name", "new"), field("consent", "cons_1")))
    check(post(registry, body), f"The form cannot be read: …{says}")


@pytest.mark.parametrize(
    "boundary", ["", "; boundary=", f"; boundary={'x' * 71}", '; boundary="a\\"b"', "; boundary=ä"]
)
def test_a_form_without_a_proper_boundary_is_refused(registry: Registry, boundary: str):
    """A form without a proper boundary is refused, because the parser would search for any boundary that it
    is given.
    """
    content_type = f"multipart/form-data{boundary}".encode("latin-1")
    response = registry.client.post(VOICES, content=whole_form(), headers=[(b"Content-Type", content_type)])
    check(response, "no boundary", param="Content-Type")


@pytest.mark.parametrize("part", [field("x", "1"), file("x", b"1")], ids=["fields", "files"])
def test_ten_thousand_parts_are_refused(registry: Registry, part: raw.Part):
    """A form of ten thousand parts is refused, because each part costs the server more
    than it costs the sender.
    """
    check(post(registry, form(*[part] * 10_000)), "Too many…Maximum number…is 16")


def test_a_hundred_thousand_urlencoded_fields_are_refused(registry: Registry):
    """A form of a hundred thousand urlencoded fields is refused, so that this encoding of
    a form has a limit too.
    """
    response = post(registry, b"x=1&" * 100_000, "application/x-www-form-urlencoded")
    check(response, "Too many fields…is 16")


def test_a_text_field_of_megabytes_is_refused(registry: Registry):
    """A text field of several megabytes is refused, because texts are kept in memory while they arrive."""
    check(post(registry, whole_form(ref_text="x" * MIB)), "exceeded maximum size of 256 KiB.")


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/plain", "audio/wav", "multipart/mixed; boundary=3f1c", ""]
)
def test_another_kind_of_body_is_refused(registry: Registry, content_type: str):
    """A body of another content type is refused. The message says which type it was and
    which are accepted.
    """
    shown = f"Content-Type is '{content_type}'; accepted: {FORMS}."
    check(post(registry, whole_form(), content_type), shown, param="Content-Type")


def test_no_body_at_all_is_refused(registry: Registry):
    """A POST without a body or a content type, such as a bare `curl -X POST`, is refused
    with the accepted types.
    """
    answer = raw.ask(registry.port, raw.head("POST", VOICES))
    check(answer, f"Content-Type is ''; accepted: {FORMS}.", param="Content-Type")


def test_a_client_that_speaks_https_is_mentioned_in_the_log_once_a_minute(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A client that speaks HTTPS to the plain port is mentioned in the log once a minute. The client sees
    only an error of its TLS library, so the cause must be in the log, and clients may try again and again.
    """
    monkeypatch.setattr(refusals, "_tls_warnings", LogThrottle(60))
    context = ssl.create_default_context()
    with capture_logs() as lines:
        for _ in range(3):
            with raw.connected(registry.port) as connection, pytest.raises(ssl.SSLError):
                context.wrap_socket(connection, server_hostname="localhost")
        wait_until(lambda: any(line["event"] == "connection.speaks_https" for line in lines))
    [told] = [line for line in lines if line["event"] == "connection.speaks_https"]
    assert (told["log_level"], told["address"]) == ("warning", "127.0.0.1")
    assert "Invalid HTTP" not in caplog.text
    assert registry.client.get("/healthz").status_code == 200


# -- sizes


def test_a_clip_of_one_byte_too_many_is_refused(registry: Registry):
    """A clip of one byte too many is refused. The limit itself, 10 MiB, is accepted."""
    response = registry.post_voice("new", clip=bytes(10 * MIB + 1))
    says = f"File size exceeds maximum limit of 10MB. Got 10485761 bytes. {ACCEPTED_CLIP}"
    check(response, says, status=413, code="payload_too_large", param="audio_sample")


def test_a_clip_of_the_size_that_is_accepted_is_looked_at(registry: Registry):
    """A clip of the largest accepted size is decoded. The refusal is about its content, not its size."""
    response = registry.post_voice("new", clip=bytes(10 * MIB))
    check(response, "no audio file that we know", code="unsupported_audio", param="audio_sample")


def test_a_body_that_declares_too_much_is_refused_before_it_is_sent(registry: Registry):
    """A body that declares too large a size is refused before it is sent. A client that asks with `Expect:
    100-continue` need not send it.
    """
    answer = raw.ask(registry.port, upload_head(10**10, "Expect: 100-continue"))
    says = f"File size exceeds maximum limit of 10MB. Got 10000000000 bytes. {ACCEPTED_FORM}"
    check(answer, says, status=413, code="payload_too_large", param="audio_sample")


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "with Content-Length"])
def test_a_caller_who_sends_far_too_much_still_gets_to_read_why(registry: Registry, chunked: bool):
    """A caller that sends far too much can still read why it was refused. Closing the connection while it
    sends would discard the answer on its way.
    """
    body = whole_form(audio_sample=bytes(40 * MIB))
    pieces = (body[start : start + MIB] for start in range(0, len(body), MIB))
    headers = {**CONTENT_TYPE, **({} if chunked else {"Content-Length": str(len(body))})}
    response = registry.client.post(VOICES, content=pieces, headers=headers)
    got = "more than 10747904" if chunked else str(len(body))
    says = f"File size exceeds maximum limit of 10MB. Got {got} bytes. {ACCEPTED_FORM}"
    check(response, says, status=413, code="payload_too_large", param="audio_sample")


def test_a_clip_without_declared_length_is_counted_as_it_arrives(registry: Registry):
    """A chunked clip without a declared length is counted as it arrives, and one byte too many is refused."""
    body = whole_form(audio_sample=bytes(10 * MIB + 1))
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
    response = registry.client.post(VOICES, content=pieces, headers=CONTENT_TYPE)
    says = f"File size exceeds maximum limit of 10MB. Got 10485761 bytes. {ACCEPTED_CLIP}"
    check(response, says, status=413, code="payload_too_large", param="audio_sample")


def test_a_declared_length_that_is_too_small_cuts_the_form(registry: Registry, start: Start):
    """A declared length that is too small cuts the form off. The bytes after it are parsed as another
    request, which is invalid and refused.
    """
    other = start(head_seconds=0.3)
    body = whole_form()
    with greeted(other.port) as connection:
        connection.sendall(upload_head(len(body) - 100) + body)
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 400") == 2
    assert b"is truncated" in answers.partition(b"HTTP/1.1 400")[2].partition(b"HTTP/1.1")[0]
    assert other.client.get(VOICES).json()["voices"] == ["default"]


@pytest.mark.parametrize(
    ("line", "says"), [("X: y", "is truncated"), ("Connection: close", "is truncated|not valid HTTP/1.1")]
)
def test_who_sends_more_than_was_declared_still_gets_to_read_the_answer(
    registry: Registry, line: str, says: str, caplog: pytest.LogCaptureFixture
):
    """A caller that sends more than it declared can still read the answer. If the connection were closed
    while it sends, it would see a reset and no reason.
    """
    for _ in range(20):
        with raw.connected(registry.port) as connection:
            connection.sendall(upload_head(1000, line) + whole_form() + bytes(4 * MIB))
            answer = raw.read_answer(connection)
        assert answer.status == 400
        assert any(part in answer.error["message"] for part in says.split("|"))
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


@contextlib.contextmanager
def greeted(port: int) -> Iterator[socket.socket]:
    """A connection that has had an answer, so that a time limit for heads begins with what is sent next. On a
    busy machine the first head may come too late, and then another connection is made.
    """
    for _ in range(100):
        with raw.connected(port) as connection:
            if is_answered(connection):
                yield connection
                return
    raise AssertionError("the server answers no connection")


def is_answered(connection: socket.socket) -> bool:
    try:
        connection.sendall(raw.head("GET", "/healthz"))
        return raw.read_answer(connection).status == 200
    except ConnectionError:
        return False


def send_for(seconds: float, connection: socket.socket) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        connection.sendall(b"more")
        time.sleep(0.01)


def test_who_sends_without_end_is_hung_up_on_after_the_answer(registry: Registry, start: Start):
    """The connection of a caller that goes on sending after the answer is closed after a while. The server
    keeps it open so that the answer can be read, but not for ever.
    """
    slow = start(head_seconds=0.3)
    with greeted(slow.port) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        check(raw.read_answer(connection), "not valid HTTP/1.1")
        with pytest.raises(ConnectionError):
            send_for(60, connection)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["Content-Length: 10", "Content-Length: 20"], "one Content-Length"),
        (["Content-Length: 10, 20"], "one Content-Length"),
        (["Content-Length: -1"], "one Content-Length (a number"),
        (["Content-Length: 1e3"], "one Content-Length (a number"),
        (["Content-Length: 0x10"], "one Content-Length (a number"),
        ([f"Content-Length: {2**64}"], "a number below 2^64 in up to 20 digits"),
        (["Content-Length: 5", "Transfer-Encoding: chunked"], "one Content-Length"),
        (
            ["Content-Encoding: gzip", "Content-Length: 5"],
            "compressed body (Content-Encoding) is not accepted",
        ),
        (["Content-Encoding: identity", "Content-Length: 5"], "compressed body"),
        (["Host: other.example", "Content-Length: 5"], "2 Host headers; accepted: one"),
        (["X-Long: " + "x" * 20_000], "a head of up to 16384 bytes|accepted: 16384"),
        ([f"X-{number}: 1" for number in range(20_000)], "a head of up to 16384 bytes|accepted: 16384"),
        (["No colon"], "not valid HTTP/1.1"),
        (["X: a\x00b"], "not valid HTTP/1.1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_head_that_can_be_read_in_two_ways_or_is_too_large_is_refused(
    registry: Registry, lines: list[str], says: str
):
    """A head that is ambiguous or too large is refused. A proxy in front may read it in another way, and let
    a request through.
    """
    answer = raw.ask(registry.port, raw.head("POST", VOICES, *lines) + b"12345")
    assert answer.status == 400
    assert any(part in answer.error["message"] for part in says.split("|"))


def test_a_head_without_end_is_refused_while_it_comes(start: Start):
    """A head without an end is refused while it arrives. After the time that a head may
    take it would be large.
    """
    patient = start(head_seconds=600)
    answer = raw.ask(patient.port, b"GET /v1/voices HTTP/1.1\r\nX: " + b"x" * MIB)
    assert (answer.status, "a head of up to 16384 bytes" in answer.error["message"]) == (400, True)


def test_a_path_of_any_length_is_refused(registry: Registry):
    """A path of any length is refused before any code handles it."""
    answer = raw.ask(registry.port, raw.head("GET", "/v1/voices/" + "x" * 15_000, "X: " + "y" * 2_000))
    assert answer.status == 400


def test_a_compressed_body_is_refused(registry: Registry):
    """A compressed body is refused, because its decompressed size would not be counted."""
    headers = {**CONTENT_TYPE, "Content-Encoding": "gzip"}
    response = registry.client.post(VOICES, content=whole_form(), headers=headers)
    check(response, "(Content-Encoding) is not accepted", param="Content-Encoding")


# -- pace


def test_a_body_that_stops_is_given_up(registry: Registry, start: Start):
    """A body that stops arriving is given up. A handful of idle connections could otherwise occupy all that
    there are.
    """
    slow = start(body_timeouts=BodyTimeouts(idle_seconds=0.2, start_seconds=60))
    answer = raw.ask(slow.port, upload_head(100_000) + whole_form()[:1000])
    check(
        answer,
        "arrives too slowly. Accepted: pauses of 0.2 s, and after 60 s at least 16384 bytes a second.",
    )


def test_a_body_that_trickles_is_given_up(registry: Registry, start: Start):
    """A body that trickles in is given up. One byte at a time never pauses long enough
    for a time-out between bytes.
    """
    slow = start(body_timeouts=BodyTimeouts(idle_seconds=60, start_seconds=0.5))
    with raw.connected(slow.port) as connection:
        connection.sendall(upload_head(100_000))
        with trickling(connection, whole_form()):
            check(
                raw.read_answer(connection), "too slowly…60 s, and after 0.5 s at least 16384 bytes a second"
            )


@contextlib.contextmanager
def trickling(connection: socket.socket, data: bytes) -> Iterator[None]:
    stop = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError):
            for byte in data:
                if stop.wait(0.02):
                    return
                connection.sendall(bytes([byte]))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_head_that_trickles_is_given_up(registry: Registry, start: Start):
    """A head that trickles in is given up, because the underlying server would wait for it for ever."""
    slow = start(head_seconds=0.3)
    with (
        greeted(slow.port) as connection,
        trickling(connection, b"GET /v1/voices HTTP/1.1\r\nX: " + bytes(99)),
    ):
        answer = raw.read_answer(connection)
    check(answer, "The request's head did not arrive within 0.3 s.", status=408)


def test_a_connection_without_a_request_is_closed(registry: Registry, start: Start):
    """A connection that sends no request is closed without an answer."""
    slow = start(head_seconds=0.3)
    with raw.connected(slow.port) as connection:
        assert connection.recv(100) == b""


def test_an_idle_connection_gives_way_to_a_new_one(start: Start, monkeypatch: pytest.MonkeyPatch):
    """The oldest idle connection is closed for a new one. Clients that hold connections open without sending
    requests shut out no other client, and no health check fails.
    """
    monkeypatch.setenv("SPEAKER_API_MAX_CONNECTIONS", "2")
    small = start()
    request = raw.head("GET", "/healthz")
    with raw.connected(small.port) as one, raw.connected(small.port) as other:
        for connection in (one, other):
            connection.sendall(request)
            assert raw.read_answer(connection).status == 200
        assert raw.ask(small.port, request).status == 200
        assert one.recv(1) == b"", "the oldest"
        other.sendall(request)
        assert raw.read_answer(other).status == 200


def test_while_all_connections_are_busy_only_health_checks_are_answered(
    registry: Registry, start: Start, monkeypatch: pytest.MonkeyPatch
):
    """Health checks are answered while all connections are busy, and other requests are refused. A failed
    probe would restart the process and lose its running work.
    """
    monkeypatch.setenv("SPEAKER_API_MAX_CONNECTIONS", "2")
    small = start()
    job_id = small.upload("alice")["job_id"]
    small.client.close()
    with raw.connected(small.port) as one, raw.connected(small.port) as other:
        for connection in (one, other):
            connection.sendall(raw.head("GET", f"/v1/jobs/{job_id}?wait=60"))
        wait_until(lambda: raw.ask(small.port, raw.head("GET", "/v1/profiles")).status == 503)
        refused = raw.ask(small.port, raw.head("GET", "/v1/profiles"))
        check(refused, "2 connections are open", status=503, code="unavailable")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        assert raw.ask(small.port, raw.head("GET", "/healthz")).status == 200
    wait_until(lambda: raw.ask(small.port, raw.head("GET", "/v1/profiles")).status == 200)


def test_the_rest_of_a_body_nobody_reads_is_not_waited_for_for_ever(registry: Registry, start: Start):
    """The rest of a body that no route reads is discarded, but not for ever. The caller
    has its answer already.
    """
    slow = start(head_seconds=0.3)
    with greeted(slow.port) as connection:
        connection.sendall(raw.head("POST", "/v1/nowhere", "Content-Length: 60000") + b"x")
        assert raw.read_answer(connection).status == 404
        with trickling(connection, bytes(1000)), contextlib.suppress(ConnectionError):
            assert connection.recv(100) == b""


def read_to_the_end(connection: socket.socket, seconds_between: float) -> int:
    """Return how many bytes arrived until the server closed the connection."""
    read = 0
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(4 * MIB):
            read += len(piece)
            time.sleep(seconds_between)
    return read


def held_by_the_server(connection: socket.socket) -> bool:
    """Return whether the server, which runs in this process, still has its end of the connection open."""
    ends = {(one.laddr.port, one.raddr.port) for one in psutil.Process().net_connections() if one.raddr}
    return (connection.getpeername()[1], connection.getsockname()[1]) in ends


MANY = 400
"""The number of answers that exceeds every buffer of the system."""


@pytest.mark.slow
@pytest.mark.parametrize("last", ["", "Connection: close"])
def test_who_asks_for_much_and_reads_nothing_is_hung_up_on(registry: Registry, start: Start, last: str):
    """A client that requests much and reads nothing is disconnected. It could otherwise hold its connection,
    and the memory of the answers, for as long as it likes.
    """
    slow = start(head_seconds=2)  # which also a busy client reads within
    expected = len(slow.client.get("/openapi.json").content) * MANY
    assert expected > 20 * MIB
    with raw.connected(slow.port) as connection:
        requests = raw.head("GET", "/openapi.json") * (MANY - 1)
        connection.sendall(requests + raw.head("GET", "/openapi.json", *filter(None, [last])))
        wait_until(lambda: held_by_the_server(connection))
        wait_until(lambda: not held_by_the_server(connection))
        assert read_to_the_end(connection, 0) < expected
    with raw.connected(slow.port) as connection:
        connection.sendall(requests + raw.head("GET", "/openapi.json", "Connection: close"))
        assert read_to_the_end(connection, 0.1) > expected, "slow is not idle"


@pytest.mark.slow
def test_patience_with_heads_cuts_neither_answers_nor_idle_connections(registry: Registry, start: Start):
    """The time limit for a head ends neither an answer nor an idle connection. A long poll takes longer than
    a head may, and so does a client's pause between two requests.
    """
    slow = start(head_seconds=1)
    uploaded = slow.upload("alice")
    with raw.connected(slow.port) as connection:
        connection.sendall(raw.head("GET", f"/v1/jobs/{uploaded['job_id']}?wait=1.5"))
        assert raw.read_answer(connection).status == 200
        time.sleep(1.2)
        connection.sendall(raw.head("GET", "/healthz"))
        assert raw.read_answer(connection).status == 200


def test_a_caller_that_vanishes_leaves_nothing_behind(registry: Registry, capsys: pytest.CaptureFixture[str]):
    """A caller that vanishes in the middle of an upload leaves neither a voice nor a crash in the logs."""
    body = whole_form()
    with raw.connected(registry.port) as connection:
        connection.sendall(upload_head(len(body)) + body[:-10])
    registry.client.get("/healthz")
    time.sleep(0.2)
    logged = capsys.readouterr()
    assert "crashed" not in logged.out + logged.err
    assert "Traceback" not in logged.out + logged.err


# -- everything else that is not there


@pytest.mark.parametrize(
    ("path", "status", "code", "param", "says"),
    [
        ("/v1/voices/nobody", 404, "voice_not_found", "name", "Voice 'nobody' not found"),
        ("/v1/voices/nobody/versions", 404, "voice_not_found", "name", "'nobody'"),
        ("/v1/voices/good/versions/2", 404, "version_not_found", "ref", "no version 2. The newest is 1."),
        (
            "/v1/voices/good/versions/prod",
            404,
            "alias_not_found",
            "ref",
            "no alias 'prod'. It has: default, latest.",
        ),
        ("/v1/voices/good/versions/0", 400, "invalid_reference", "ref", "'0'…a version number from 1"),
        ("/v1/voices/good/versions/%D9%A1", 400, "invalid_reference", "ref", "Accepted"),
        (
            "/v1/voices/good/versions/1/artifacts/nope",
            404,
            "profile_unknown",
            "profile",
            "'nope'. Known: audio8",
        ),
        (
            "/v1/voices/good/versions/1/artifacts/nope/file",
            404,
            "profile_unknown",
            "profile",
            "Known: audio8",
        ),
        ("/v1/voices?profile=nope", 404, "profile_unknown", "profile", "'nope'"),
        ("/v1/voices?state=done", 400, "invalid_request", "state", "'done'…'ready'"),
        (
            "/v1/voices?limit=101",
            400,
            "invalid_request",
            "limit",
            "'101'; accepted: a whole number from 1 to 100.",
        ),
        (
            "/v1/voices?limit=many",
            400,
            "invalid_request",
            "limit",
            "'many'; accepted: a whole number from 1 to 100.",
        ),
        ("/v1/jobs/job_x", 404, "job_not_found", "job_id", "'job_x'"),
        ("/v1/jobs?after=job_x", 404, "job_not_found", "job_id", "'job_x'"),
        ("/v1/jobs?state=done", 400, "invalid_request", "state", "'done'"),
        ("/v1/jobs?voice=a@b", 400, "invalid_voice_name", "name", "'a@b'"),
        ("/v1/jobs/job_x?wait=61", 400, "invalid_request", "wait", "'61'; accepted: a number from 0 to 60."),
        ("/v1/nowhere", 404, "not_found", None, "/v1/nowhere"),
        ("/", 404, "not_found", None, "/"),
    ],
)
def test_what_does_not_exist_is_said_to_be_missing(
    registry: Registry, path: str, status: int, code: str, param: str | None, says: str
):
    """A request for something that does not exist is refused. The message lists what exists where it can, and
    another voice is never served in its place.
    """
    check(registry.client.get(path), says, status=status, code=code, param=param)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", VOICES, "GET, HEAD, POST"),
        ("PATCH", f"{VOICES}/good", "DELETE"),
        ("GET", f"{VOICES}/good", "DELETE"),
        ("DELETE", f"{VOICES}/good/cache", "GET, HEAD, POST"),
        ("TRACE", VOICES, "GET, HEAD, POST"),
        ("PURGE", "/v1/voices", "GET, HEAD, POST"),
        ("DELETE", "/v1/voices/good/versions", "GET, HEAD, POST"),
        ("POST", "/v1/voices/good", "DELETE, GET, HEAD, PATCH"),
        ("HEAD", f"{VOICES}/good", "DELETE"),
        ("DELETE", "/v1/voices/good/versions/1/artifacts/qwen3-tts-0.6b/file", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_refused(
    registry: Registry, method: str, path: str, allowed: str
):
    """A method that a path does not have is refused. `Allow` and the message list the methods that it has,
    and an override in a header changes nothing.
    """
    response = registry.client.request(method, path, headers={"X-HTTP-Method-Override": "DELETE"})
    assert (response.status_code, response.headers["Allow"]) == (405, allowed)
    if method != "HEAD":
        check(response, f"{method} is not supported here; accepted: {allowed}.", status=405)


def test_every_clip_of_the_corpus_is_refused_for_a_fault_of_the_clip():
    """Every clip of the corpus is refused with a code of the family that callers catch. The table above
    asserts on these codes.
    """
    assert all(issubclass(clip.error, InvalidAudio) for clip in BAD)
