"""Tests of what clients expect of any HTTP service: slashes at the end of a path,
compressed JSON, an icon.
"""

import gzip
import json
from urllib.parse import urljoin

import httpx
import pytest
from starlette.datastructures import Headers

from services.registry_api.serving.compression import is_compressible
from tests.integration.api.registry import PROFILE, Registry
from tests.unit.audio import clips

GZIP, PLAIN = {"Accept-Encoding": "gzip"}, {"Accept-Encoding": "identity"}


# -- a slash at the end


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/v1/audio/voices/", "../voices"),
        ("/v1/voices/?limit=1&q=a%2Fb", "../voices?limit=1&q=a%2Fb"),
        ("/v1/voices/a%20b%3Ac/", "../a%20b%3Ac"),
        ("/v1/voices/%E5%90%8D/versions/", "../versions"),
        ("/healthz/", "../healthz"),
    ],
)
def test_a_slash_at_the_end_leads_to_the_path_without_it(registry: Registry, path: str, location: str):
    """A path with a slash at its end redirects to the path without it, as in vLLM-Omni. The address is
    relative, so it keeps host, scheme and a proxy's own prefix, whatever the Host header says.
    """
    response = registry.client.get(path, headers={"Host": "localhost"})
    assert (response.status_code, response.headers["Location"]) == (307, location)
    seen = f"https://voices.example/registry{path}"
    assert urljoin(seen, location) == seen.replace("/?", "?").removesuffix("/")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/",
        "/v1/nonsense/",
        "/v1/voices//",
        "//evil.example/",
        "//evil.example/v1/voices/",
        "/v1/voices/a/b/",
    ],
)
def test_what_leads_nowhere_is_not_found(registry: Registry, path: str):
    """A path that is not found is never redirected, so no client is sent to another host."""
    response = httpx.get(f"{registry.url}{path}")
    assert response.status_code == 404
    assert "location" not in response.headers
    assert response.json()["error"]["code"] == "not_found"


def test_an_upload_is_sent_again_where_it_belongs(registry: Registry, name: str):
    """An upload to a path with a slash at its end is redirected with its method and its body, which is larger
    than other routes accept.
    """
    with httpx.Client(base_url=registry.url, follow_redirects=True) as client:
        response = client.post(
            "/v1/audio/voices/",
            data={"name": name, "consent": "c"},
            files={"audio_sample": ("clip.wav", clips.wav(3.5), "audio/wav")},
        )
    assert [one.status_code for one in response.history] == [307]
    assert response.status_code == 200, response.text
    assert registry.client.get(f"/v1/voices/{name}").status_code == 200


# -- compressed answers


def raw(registry: Registry, path: str, method: str = "GET", **headers: str) -> tuple[httpx.Response, bytes]:
    """Return the answer, and its body as it was transferred."""
    with httpx.stream(method, f"{registry.url}{path}", headers=headers) as response:
        return response, b"".join(response.iter_raw())


def test_a_long_list_is_compressed_for_whoever_can_read_that(registry: Registry, name: str):
    """A long list is compressed for clients that accept it. A list of 304 voices takes 114 KB otherwise."""
    for number in range(5):
        registry.upload(f"{name}-{number}")
    plain, whole = raw(registry, "/v1/voices", **PLAIN)
    compressed, body = raw(registry, "/v1/voices", **GZIP)
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert int(compressed.headers["Content-Length"]) == len(body) < len(whole) / 3
    assert json.loads(gzip.decompress(body)) == json.loads(whole)
    assert "Content-Encoding" not in plain.headers
    for answer in (plain, compressed):
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert answer.headers["ETag"] == plain.headers["ETag"]


@pytest.mark.parametrize("accepted", ["", "identity", "br", "gzip;q=0", "gzip; q=0.0, br", "*;q=0"])
def test_nothing_is_compressed_for_whoever_cannot_read_it(registry: Registry, accepted: str):
    """Nothing is compressed for clients that cannot decompress it or have declined it."""
    response, body = raw(registry, "/openapi.json", **{"Accept-Encoding": accepted})
    assert "Content-Encoding" not in response.headers
    assert json.loads(body)["openapi"]


@pytest.mark.parametrize("accepted", ["gzip", "deflate, gzip;q=0.5", "GZIP", "br;q=1.0, gzip"])
def test_everybody_else_gets_it_compressed(registry: Registry, accepted: str):
    """Answers are compressed for all other clients, in whatever form the header accepts it."""
    response, body = raw(registry, "/openapi.json", **{"Accept-Encoding": accepted})
    assert response.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(body))["openapi"]


def test_a_short_answer_is_sent_as_it_is(registry: Registry, name: str):
    """A short answer is sent uncompressed, because compressing takes longer than it saves. Its `Vary` header
    tells caches all the same.
    """
    response, body = raw(registry, "/v1/jobs?voice=nobody", **GZIP)
    assert "Content-Encoding" not in response.headers
    assert response.headers["Vary"] == "Accept-Encoding"
    assert json.loads(body)["data"] == []


def test_an_answer_is_not_changed_whether_it_was_compressed_or_not(registry: Registry, name: str):
    """An answer has the same tag compressed or not. The tag is weak: it stands for the content, not for the
    bytes. A 304 is answered for both.
    """
    registry.upload(name)
    for path in ("/v1/voices", f"/v1/voices/{name}"):
        tag = raw(registry, path, **GZIP)[0].headers["ETag"]
        assert tag.startswith('W/"')
        for encoding in (GZIP, PLAIN):
            for given in (tag, tag.removeprefix("W/")):
                same, body = raw(registry, path, **encoding, **{"If-None-Match": given})
                assert (same.status_code, body, same.headers["ETag"]) == (304, b"", tag)
                assert same.headers["Vary"] == "Accept-Encoding"
                assert "Content-Encoding" not in same.headers
        assert registry.client.delete(f"/v1/voices/{name}", headers={"If-Match": '"x"'}).status_code == 412
    tag = registry.client.get(f"/v1/voices/{name}").headers["ETag"]
    assert registry.client.delete(f"/v1/voices/{name}", headers={"If-Match": tag}).status_code == 204


def test_head_says_what_get_would(registry: Registry, name: str):
    """HEAD has the headers of GET, the length of the compressed body included."""
    _, body = raw(registry, "/openapi.json", **GZIP)
    head, nothing = raw(registry, "/openapi.json", "HEAD", **GZIP)
    assert (head.headers["Content-Length"], nothing) == (str(len(body)), b"")
    assert head.headers["Content-Encoding"] == "gzip"


def test_artifacts_and_clips_are_never_compressed(registry: Registry, name: str):
    """Artifacts and clips are never compressed. Their tags and digests are of their bytes, and these are
    dense already.
    """
    registry.ready(name)
    for path in (
        f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}/file",
        f"/v1/voices/{name}/versions/1/audio",
    ):
        response, body = raw(registry, path, **GZIP)
        assert "Content-Encoding" not in response.headers
        assert int(response.headers["Content-Length"]) == len(body)
        assert response.headers["ETag"].startswith('"sha256:')


def test_what_must_not_be_kept_is_not_compressed(registry: Registry):
    """An answer that shows a key is not compressed. Its compressed length would let
    others guess its content.
    """
    said = {"content-type": "application/json", "content-length": "5000"}
    assert is_compressible(Headers(said))
    assert is_compressible(Headers({"content-type": "application/json; charset=utf-8"})), "streamed"
    assert not is_compressible(Headers({**said, "cache-control": "no-store"}))
    assert not is_compressible(Headers({**said, "content-length": "500"}))
    assert not is_compressible(Headers({**said, "content-type": "text/plain"}))
    assert not is_compressible(Headers({**said, "content-encoding": "gzip"}))


# -- answers that may be kept


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/static-offline-docs/swagger-ui.css"])
def test_the_documentation_is_checked_before_it_is_used_again(registry: Registry, path: str):
    """Every answer says who may keep it. A browser could otherwise show the documentation of an earlier
    release.
    """
    assert registry.client.get(path).headers["Cache-Control"] == "private, no-cache"


# -- an icon


def test_browsers_that_open_the_address_are_led_to_the_pages(registry: Registry):
    """People open the address that `make run` prints. Programs get the same 404 as for any unknown path."""
    browser = registry.client.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (browser.status_code, browser.headers["Location"]) == (307, "dashboard")
    answers = [registry.client.get(path) for path in ("/", "/nowhere")]
    assert [one.status_code for one in answers] == [404, 404]
    assert answers[0].json()["error"]["code"] == answers[1].json()["error"]["code"]


def test_browsers_find_an_icon(registry: Registry):
    """The icon exists. Each browser requests it to show the documentation, and would otherwise log a 404 with
    every visit.
    """
    response = registry.client.get("/favicon.ico")
    assert (response.status_code, response.headers["Content-Type"]) == (200, "image/x-icon")
    assert response.content[:4] == b"\0\0\1\0"
    assert "max-age" in response.headers["Cache-Control"]
    assert registry.client.head("/favicon.ico").headers["Content-Length"] == str(len(response.content))
