"""Tests of signing in to the pages at an OpenID provider. The provider is a server of the tests."""

import base64
import gzip
import html
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from services.registry_api.access import provider as provider_requests
from services.registry_api.access.provider import fetch_json, provider_client
from services.registry_api.access.provider_sign_in import ProviderSignIn, SignIn
from services.registry_api.access.tokens import JwtVerifier
from services.registry_api.pages import provider as provider_page
from services.registry_api.pages.provider import COOKIE
from services.registry_api.pages.sessions import COOKIE as SESSION
from services.registry_api.pages.sessions import FORM_COOKIE
from services.shared.configuration.access import AccessSettings
from speaker_registry.errors import InvalidApiKey
from tests.http_server import http_server
from tests.integration.api.access import BOOTSTRAP
from tests.integration.api.conftest import empty
from tests.integration.api.openid import CLIENT, OTHER_KEY, Provider, provided_by
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import Registry

OPERATOR = {"scope": "openid admin voices:read jobs:read", "speaker_namespace": "*"}


@pytest.fixture(scope="module")
def served() -> Iterator[Provider]:
    provider = Provider()
    with http_server(provider) as url:
        provider.issuer = f"{url}/realms/voices"
        yield provider


@pytest.fixture
def provider(served: Provider) -> Provider:
    """The provider, for somebody who may see voices."""
    served.claims, served.identity, served.away = {"scope": "openid voices:read"}, {}, False
    served.refusal = None
    served.authorizations.clear()
    return served


@pytest.fixture(scope="module")
def registry(
    tmp_path_factory: pytest.TempPathFactory, valkey: Any, decoder: Any, served: Provider
) -> Iterator[Registry]:
    """A registry whose pages know the provider, as a client with a secret."""
    access = provided_by(served)
    with Registry(tmp_path_factory.mktemp("provider"), empty(valkey, 12), decoder, access=access) as registry:
        yield registry


@pytest.fixture
def visitor(registry: Registry) -> Iterator[Visitor]:
    with Visitor(registry) as visitor:
        visitor.http.follow_redirects = False
        yield visitor


def begin(visitor: Visitor, **query: str) -> str:
    """Begin a sign-in and return the address of the provider's page."""
    answer = visitor.get("/login/provider", params=query)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def sign_ins(visitor: Visitor) -> list[str]:
    """Return the names of the cookies of sign-ins that the browser keeps."""
    return [name for name in visitor.http.cookies if name.startswith(COOKIE)]


def test_the_provider_signs_a_person_in(visitor: Visitor, provider: Provider):
    """A person without an API key comes to the page that they asked for, and is offered what they may do."""
    assert "Sign in with your organisation" in visitor.get("/login").text
    address = begin(visitor, next="/dashboard/voices?state=ready")
    asked = dict(parse_qsl(urlsplit(address).query))
    assert asked["code_challenge_method"] == "S256"
    assert asked["scope"] == "openid"
    back = visitor.http.get(provider.sign_in(address))
    assert back.status_code == 200
    assert 'content="0;url=/dashboard/voices?state=ready"' in back.text
    assert provider.authorizations == ["Basic " + base64.b64encode(f"{CLIENT}:s3cret".encode()).decode()]
    assert visitor.get("/voices").status_code == 200
    assert visitor.get("/jobs").status_code == 403
    assert not sign_ins(visitor)


def test_an_operator_of_the_provider_manages_keys(visitor: Visitor, provider: Provider):
    """Scopes and namespace of the provider's token count, as they do for the API."""
    provider.claims = OPERATOR
    visitor.http.get(provider.sign_in(begin(visitor)))
    assert visitor.get("/keys").status_code == 200


def test_the_cookie_of_a_sign_in_is_for_this_browser_and_these_paths(visitor: Visitor):
    """It comes back from the provider's site, and no script and no other page of ours gets it."""
    cookies = visitor.get("/login/provider").headers.get_list("set-cookie")
    [cookie] = [one.split("; ") for one in cookies if one.startswith(COOKIE)]
    assert {"Path=/dashboard/login", "HttpOnly", "SameSite=Lax", "Max-Age=600"} <= set(cookie)


def test_another_browser_cannot_be_signed_in(registry: Registry, visitor: Visitor, provider: Provider):
    """Otherwise an attacker could lead a person to the attacker's own answer, and get what the person then
    uploads.
    """
    answer = provider.sign_in(begin(visitor))
    with Visitor(registry) as victim:
        back = victim.http.get(answer)
        assert back.status_code == 403
        assert "did not begin in this browser" in back.text
        begin_own = victim.http.get("/dashboard/login/provider", follow_redirects=False)
        assert begin_own.status_code == 303
        assert victim.http.get(answer).status_code == 403  # it has begun one, but not this one
        assert victim.get("/voices").url.path == "/dashboard/login"


def test_an_answer_counts_once(visitor: Visitor, provider: Provider):
    """Whoever finds an answer in a log cannot use it again."""
    answer = provider.sign_in(begin(visitor))
    assert visitor.http.get(answer).status_code == 200
    visitor.http.cookies.clear()
    assert visitor.http.get(answer).status_code == 403


def test_ten_pages_of_one_browser_sign_in_at_the_same_moment(visitor: Visitor, provider: Provider):
    """When a session has ended, people sign in on each of their open pages, in any order. Requests that are
    sent at once do not know of each other's cookies.
    """
    visitor.get("/login")
    before = dict(visitor.http.cookies)
    begun = []
    for number in range(10):
        with httpx.Client(base_url=visitor.http.base_url, cookies=before) as at_once:
            answer = at_once.get(
                "/dashboard/login/provider", params={"next": f"/dashboard/voices?q={number}"}
            )
            begun.append(answer.headers["location"])
            visitor.http.cookies.update(answer.cookies)
    for number, address in reversed(list(enumerate(begun))):
        back = visitor.http.get(provider.sign_in(address))
        assert back.status_code == 200
        assert f'content="0;url=/dashboard/voices?q={number}"' in back.text
    assert not sign_ins(visitor)


def test_a_browser_forgets_the_oldest_sign_ins(visitor: Visitor, provider: Provider):
    """Cookies of sign-ins that were given up must not grow until a proxy refuses every request."""
    oldest, *others = (begin(visitor, next="/dashboard/voices?q=" + "x" * 900) for _ in range(3))
    assert len(sign_ins(visitor)) == 2
    assert visitor.http.get(provider.sign_in(oldest)).status_code == 403
    for address in others:
        assert visitor.http.get(provider.sign_in(address)).status_code == 200


def test_a_sign_in_that_takes_too_long_is_begun_again(
    visitor: Visitor, provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    """A browser that was left alone at the provider's page signs nobody in an hour later."""
    answer = provider.sign_in(begin(visitor))
    monkeypatch.setattr(provider_page, "SIGN_IN_SECONDS", -1)
    assert visitor.http.get(answer).status_code == 403


@pytest.mark.parametrize(("ahead", "status"), [(40, 200), (80, 403)])
def test_a_sign_in_ends_at_a_process_whose_clock_is_behind(
    visitor: Visitor, provider: Provider, monkeypatch: pytest.MonkeyPatch, ahead: int, status: int
):
    """It may end at another process than it began at, whose clock may be up to a minute behind."""
    at_the_first = time.time() + ahead
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: at_the_first)
        answer = provider.sign_in(begin(visitor))
    assert visitor.http.get(answer).status_code == status


def test_a_sign_in_that_redis_lost_is_begun_again(registry: Registry, visitor: Visitor, provider: Provider):
    """A restarted Redis has lost the secret with which the sign-in was sealed."""
    answer = provider.sign_in(begin(visitor))
    [secret] = registry.redis.keys("sr:*:seal_secret")
    registry.redis.delete(secret)
    back = visitor.http.get(answer)
    assert back.status_code == 403
    assert "Redis was restarted" in back.text


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ({"nonce": "another"}, "belongs to another sign-in"),
        ({"nonce": None}, "belongs to another sign-in"),
        ({"nonce": "\ud800"}, "belongs to another sign-in"),
        ({"aud": [CLIENT, "another-client"]}, "issued to another client"),
        ({"aud": [CLIENT, "another-client"], "azp": "another-client"}, "issued to another client"),
        ({"azp": "another-client"}, "issued to another client"),
        ({"aud": "another-client"}, "not accepted"),
        ({"iss": "https://evil.example"}, "not accepted"),
        ({"exp": int(time.time()) - 100}, "not accepted"),
        ({"key": OTHER_KEY}, "not accepted"),
    ],
)
def test_a_wrong_id_token_signs_nobody_in(
    visitor: Visitor, provider: Provider, identity: dict[str, Any], said: str
):
    """An ID token must be the provider's, for this client, and for the sign-in that this browser began."""
    provider.identity = identity
    back = visitor.http.get(provider.sign_in(begin(visitor)))
    assert back.status_code == 403
    assert said in back.text
    assert visitor.get("/voices").status_code == 303


@pytest.mark.parametrize("audience", [CLIENT, [CLIENT], [CLIENT, "another-client"]])
def test_an_id_token_may_name_the_client_that_it_was_issued_to(
    visitor: Visitor, provider: Provider, audience: str | list[str]
):
    """An ID token with several audiences must name this client as the one that it was issued to."""
    provider.identity = {"aud": audience, "azp": CLIENT}
    assert visitor.http.get(provider.sign_in(begin(visitor))).status_code == 200


def test_an_access_token_of_odd_characters_signs_nobody_in(
    visitor: Visitor, provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    """JSON can express a lone surrogate, which fits into no header and no cookie."""
    answer = provider.sign_in(begin(visitor))
    given = provider.token
    monkeypatch.setattr(provider, "token", lambda **claims: given(**claims) if "aud" in claims else "\ud800")
    back = visitor.http.get(answer)
    assert back.status_code == 403
    assert "its claims cannot be read" in back.text


def test_a_token_for_another_service_opens_nothing(visitor: Visitor, provider: Provider):
    """The access token must be one that the API accepts."""
    provider.claims = {"aud": "another-service"}
    assert visitor.http.get(provider.sign_in(begin(visitor))).status_code == 403


def test_signing_in_starts_a_new_session(registry: Registry, visitor: Visitor, provider: Provider):
    """A session that someone else planted before must not become the one that is signed in."""
    address = begin(visitor)
    planted = visitor.http.cookies[FORM_COOKIE]
    visitor.http.get(provider.sign_in(address))
    assert visitor.http.cookies[SESSION] != planted
    with httpx.Client(base_url=registry.url, cookies={SESSION: planted, FORM_COOKIE: planted}) as other:
        assert other.get("/dashboard").status_code == 303


def test_a_cookie_of_one_kind_is_none_of_the_other(registry: Registry, visitor: Visitor, provider: Provider):
    """Both are sealed with the same secret."""
    address = begin(visitor)
    [cookie] = sign_ins(visitor)
    swapped = {SESSION: visitor.http.cookies[cookie], cookie: visitor.http.cookies[FORM_COOKIE]}
    with httpx.Client(base_url=registry.url, cookies=swapped) as other:
        assert other.get("/dashboard").status_code == 303
        assert other.get(provider.sign_in(address)).status_code == 403


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("error=access_denied", "ask the operator of this registry for access"),
        ("error=server_error", "tell the operator"),
        ("code=nothing", "tell the operator"),
        ("code=", "tell the operator"),
        ("state=", "did not begin in this browser"),
        ("iss=https://evil", "tell the operator"),
    ],
)
def test_a_refusal_of_the_provider_is_told(visitor: Visitor, provider: Provider, query: str, said: str):
    """Whatever is answered in the name of the provider, a person reads a sentence and can begin again."""
    answer = httpx.URL(provider.sign_in(begin(visitor))).copy_merge_params(dict(parse_qsl(query, True)))
    back = visitor.http.get(answer)
    assert back.status_code == 403
    assert 'role="alert"' in back.text
    assert "Begin again" in back.text
    assert said in back.text
    assert "Sign in with your organisation" in back.text


def test_a_provider_that_is_away_is_told(visitor: Visitor, provider: Provider):
    """The registry does not fail with its provider: whoever has a key signs in with it."""
    answer = provider.sign_in(begin(visitor))
    provider.away = True
    back = visitor.http.get(answer)
    assert (back.status_code, back.headers["Retry-After"]) == (503, "5")
    assert "cannot be reached now" in back.text
    visitor.http.follow_redirects = True
    assert visitor.sign_in(str(BOOTSTRAP)).url.path == "/dashboard"


REFUSAL = b'{"error": "%s", "error_description": "s3cret"}'


@pytest.mark.parametrize(
    ("answer", "status", "said", "logged"),
    [
        (
            (400, REFUSAL % b"invalid_grant"),
            403,
            "did not accept this sign-in",
            "400, 'error': 'invalid_grant'",
        ),
        ((401, REFUSAL % b"invalid_client"), 503, "Tell the operator", "401, 'error': 'invalid_client'"),
        ((400, REFUSAL % b"unauthorized_client"), 503, "Tell the operator", "400, 'error': 'unauth"),
        ((404, b"<h1>Not here</h1>"), 503, "Tell the operator", "404, 'error': ''"),
        ((302, b""), 503, "Tell the operator", "302, 'error': ''"),
        ((429, b"[]"), 503, "cannot be reached now", "429, 'error': ''"),
        ((500, REFUSAL % b"the secret is s3cret"), 503, "cannot be reached now", "500, 'error': ''"),
        ((200, b'{"error": "s3cret"}'), 403, "Begin again", "'error': 'the answer lacks a token'"),
        ((200, b"<h1>Welcome</h1>"), 503, "cannot be reached now", "'error': 'JSONDecodeError: Expecting"),
    ],
)
def test_a_sign_in_that_the_provider_refuses_is_logged(
    visitor: Visitor, provider: Provider, answer: tuple[int, bytes], status: int, said: str, logged: str
):
    """A person reads whether to begin again, to wait or to tell the operator, who finds the answer in the
    log. No secret goes there, even if the provider quotes it.
    """
    address = provider.sign_in(begin(visitor))
    provider.refusal = answer
    with capture_logs() as events:
        back = visitor.http.get(address)
    assert back.status_code == status
    assert said in back.text
    [event] = [one for one in events if one["event"] == "issuer.sign_in_failed"]
    assert event["log_level"] == "warning"
    assert logged in str(event)
    assert "s3cret" not in str(events)
    assert parse_qsl(urlsplit(address).query)[0][1] not in str(event)


@pytest.mark.parametrize("member", ["claims", "identity"])
@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"iss": "https://elsewhere.example"}, "issuer (iss) is 'https://elsewhere.example'; accepted: "),
        ({"iat": 4_000_000_000}, "Its iat is "),
        ({"aud": "another-service"}, "not accepted"),
    ],
)
def test_a_fresh_token_that_is_refused_is_logged(
    visitor: Visitor, provider: Provider, odd: dict[str, Any], said: str, member: str
):
    """A clock or a setting is wrong then, which the person cannot mend, and operators see only the log."""
    setattr(provider, member, odd)
    address = provider.sign_in(begin(visitor))
    with capture_logs() as events:
        back = visitor.http.get(address)
    assert back.status_code == 403
    assert said in html.unescape(back.text)
    [event] = [one for one in events if one["event"] == "issuer.sign_in_failed"]
    assert said in event["error"]
    assert "robin@example.org" not in str(events)


def test_an_environment_that_allows_no_request_is_told_as_a_provider_that_is_away(
    visitor: Visitor, provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    """httpx raises other errors for a wrong SSL_CERT_FILE or ALL_PROXY than for requests."""
    address = provider.sign_in(begin(visitor))
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    with capture_logs() as events:
        back = visitor.http.get(address)
    assert (back.status_code, "cannot be reached now" in back.text) == (503, True)
    assert [one["log_level"] for one in events if one["event"] == "issuer.sign_in_failed"] == ["warning"]


def test_the_client_and_its_secret_are_encoded_for_basic_authentication():
    """RFC 6749, section 2.3.1. A client id may be a URN, whose colon would end it."""
    provider = Provider()
    with http_server(provider) as url:
        provider.issuer = url
        settings = provided_by(provider).model_copy(
            update={"oidc_client_id": "urn:my client", "oidc_client_secret": SecretStr("p+q%2F:\u00e9")}
        )
        signer = ProviderSignIn(settings, JwtVerifier(settings))
        with pytest.raises(InvalidApiKey):
            signer.finish(SignIn.new("/dashboard"), "code", f"{url}/dashboard/login/callback")
    [sent] = provider.authorizations
    assert base64.b64decode(str(sent).removeprefix("Basic ")) == b"urn%3Amy+client:p%2Bq%252F%3A%C3%A9"


@pytest.mark.parametrize(
    ("begins", "drips"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"a"),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{", b" "),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", b" "),
    ],
)
def test_an_answer_that_arrives_byte_by_byte_is_given_up(
    monkeypatch: pytest.MonkeyPatch, begins: bytes, drips: bytes
):
    """Each piece arrives in time, so no time limit of a single read ends the answer."""
    monkeypatch.setattr(provider_requests, "_ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(begins)
                for _ in range(200):
                    time.sleep(0.05)
                    connection.sendall(drips)

        thread = threading.Thread(target=answer)
        thread.start()
        began = time.monotonic()
        with provider_client() as http, pytest.raises(ValueError, match="takes longer than"):
            fetch_json(http, f"http://127.0.0.1:{server.getsockname()[1]}/token")
        assert time.monotonic() - began < 5
        thread.join()


def test_a_compressed_answer_of_the_provider_is_refused():
    """It may expand a thousandfold for each layer of compression, before its size is known."""
    asked: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        asked.append(request.headers.get("Accept-Encoding"))
        return 200, gzip.compress(gzip.compress(b'{"a": 1}'))

    with (
        http_server(answer, {"Content-Encoding": "gzip, gzip"}) as url,
        provider_client() as http,
        pytest.raises(ValueError, match="answers with a compressed body, which was not asked for"),
    ):
        fetch_json(http, url)
    assert asked == ["identity"]


def test_a_person_reloads_the_page_when_the_provider_is_back(visitor: Visitor, provider: Provider):
    """The sign-in is still the one that this browser began, so it does not have to begin again."""
    answer = provider.sign_in(begin(visitor))
    provider.away = True
    assert visitor.http.get(answer).status_code == 503
    provider.away = False
    assert visitor.http.get(answer).status_code == 200


def test_a_token_that_fits_in_no_cookie_is_refused_in_words(visitor: Visitor, provider: Provider):
    """Browsers drop such a cookie without a word, and the person would be asked to sign in for ever."""
    provider.claims = {"scope": "voices:read", "groups": ["group-of-people"] * 300}
    back = visitor.http.get(provider.sign_in(begin(visitor)))
    assert back.status_code == 403
    assert "accepted: up to 2700" in back.text


def test_without_a_provider_there_is_no_way_to_one(tmp_path: Any, valkey: Any, decoder: Any):
    """A registry without a provider offers none."""
    access = AccessSettings(bootstrap_key=SecretStr(str(BOOTSTRAP)))
    with (
        Registry(tmp_path, empty(valkey, 11), decoder, access=access) as registry,
        Visitor(registry) as visitor,
    ):
        assert visitor.get("/login/provider").status_code == 404
        assert "organisation" not in visitor.get("/login").text
