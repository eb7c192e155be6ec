"""Tests of the pages for people over HTTP, as a browser without scripts uses them: sessions, scopes, forms,
and text from strangers. `test_pages_in_a_browser.py` looks at them with a real browser.
"""

import html
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest

from services.registry_api.access.rules import accepted_scopes, our_routes
from services.registry_api.keys.api_keys import ALL_SCOPES
from services.registry_api.pages import history, keys, voices
from services.registry_api.pages.activity import Activity
from services.registry_api.pages.sessions import COOKIE, FORM_COOKIE
from services.registry_api.protocol.routing import is_page
from services.shared.configuration.access import RateSettings
from services.shared.view.keys import jobs_key
from services.shared.view.workers import FailedProof
from speaker_registry.errors import Unavailable, WorkerError
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, id_of, key
from tests.integration.api.conftest import Start, empty
from tests.integration.api.pages import TOKEN, Page, Visitor, strange_elements
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, Registry
from tests.integration.api.test_aliases import make_versions, put
from tests.unit.audio import clips

RULES: dict[str, set[str] | None] = {
    "GET /dashboard": set(ALL_SCOPES),
    "GET /dashboard/assets/{name}": None,
    "GET /dashboard/login": None,
    "POST /dashboard/login": None,
    "GET /dashboard/login/provider": None,
    "GET /dashboard/login/callback": None,
    "POST /dashboard/logout": set(ALL_SCOPES),
    "POST /dashboard/namespace": set(ALL_SCOPES),
    "GET /dashboard/voices": {"voices:read", "engine"},
    "GET /dashboard/voices/@new": {"voices:write"},
    "POST /dashboard/voices": {"voices:write"},
    "POST /dashboard/voices/sample": {"voices:write"},
    "GET /dashboard/voices/{name}": {"voices:read", "engine"},
    "GET /dashboard/voices/{name}/versions/{number}/audio": {"audio:read"},
    "GET /dashboard/voices/{name}/versions/{number}/pictures": {"audio:read"},
    "GET /dashboard/voices/{name}/versions/{number}/pictures/{picture}": {"audio:read"},
    "GET /dashboard/voices/{name}/versions/{number}/artifacts/{profile}": {"artifacts:read", "engine"},
    "POST /dashboard/voices/{name}/versions/{number}/extractions": {"jobs:write", "engine"},
    "POST /dashboard/voices/{name}/versions/{number}/delete": {"voices:delete"},
    "GET /dashboard/voices/{name}/about": {"voices:write"},
    "POST /dashboard/voices/{name}/about": {"voices:write"},
    "POST /dashboard/voices/{name}/aliases": {"voices:write"},
    "POST /dashboard/voices/{name}/aliases/remove": {"voices:write"},
    "POST /dashboard/voices/{name}/delete": {"voices:delete"},
    "POST /dashboard/voices/{name}/undelete": {"voices:delete"},
    "GET /dashboard/jobs": {"jobs:read", "engine"},
    "POST /dashboard/jobs/{job_id}/cancel": {"jobs:write"},
    "POST /dashboard/jobs/{job_id}/retry": {"jobs:write", "engine"},
    "GET /dashboard/profiles": set(ALL_SCOPES),
    "GET /dashboard/keys": {"admin"},
    "POST /dashboard/keys": {"admin"},
    "POST /dashboard/keys/{key_id}/rotate": {"admin"},
    "POST /dashboard/keys/{key_id}/revoke": {"admin"},
}
"""The scopes that each page needs; None: no key. The table repeats the rules of the routes, so that no page
is opened by mistake.
"""
FORMS = sorted(what.removeprefix("POST ") for what in RULES if what.startswith("POST"))
ADDRESS = {
    "name": "nobody",
    "number": "1",
    "picture": "mel.png",
    "profile": PROFILE,
    "job_id": "job_x",
    "key_id": "nokeyid0",
}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, valkey: Any, decoder: Any) -> Iterator[Registry]:
    """A registry that requires keys."""
    with Registry(tmp_path_factory.mktemp("pages"), empty(valkey, 13), decoder, access=CLOSED) as registry:
        yield registry


@pytest.fixture(autouse=True)
def forgiven(closed: Registry) -> None:
    """No test is limited because others before it had no valid key."""
    closed.app.state.parts.services.access._failures.clear()


@pytest.fixture
def operator(closed: Registry) -> Iterator[Visitor]:
    with Visitor(closed, str(BOOTSTRAP)) as visitor:
        yield visitor


@pytest.fixture
def visitor(registry: Registry) -> Iterator[Visitor]:
    """A person at a registry without keys."""
    with Visitor(registry) as visitor:
        yield visitor


def test_every_page_has_its_rule(registry: Registry):
    """Each page asks for the scopes of the route that does the same. A page without a rule would be open."""
    found = {}
    for route in our_routes(registry.app):
        scopes = accepted_scopes(route)
        for method in (route.methods or set()) - {"HEAD"}:
            if is_page(str(route.path)):
                found[f"{method} {route.path}"] = set(ALL_SCOPES) if scopes == frozenset() else scopes
    assert found == RULES


@pytest.mark.parametrize("what", sorted(RULES))
def test_a_stranger_is_led_to_sign_in(closed: Registry, what: str):
    """Whoever has no session sees the page to sign in at, and nothing of the registry."""
    method, path = what.split()
    with httpx.Client(base_url=closed.url) as http:
        answer = http.request(method, path.format(**{**ADDRESS, "name": "dashboard.css"}))
    if RULES[what] is None:
        return
    if method == "POST" and path != "/dashboard/logout":
        assert answer.status_code == 401
        assert leads_to(answer.text) == {"/dashboard/login"}
        return
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/dashboard/login")
    assert not answer.content


@pytest.mark.parametrize("path", FORMS)
def test_a_form_without_its_token_is_refused(operator: Visitor, path: str):
    """Without the token, a page elsewhere could make a browser that is signed in send a form."""
    before = operator.get("/keys").text
    answer = operator.http.post(path.format(**ADDRESS), data={"name": "x"})
    assert answer.status_code == 403
    assert "This form is no longer valid" in answer.text
    assert TOKEN.sub("", operator.get("/keys").text) == TOKEN.sub("", before)


OF_ANOTHER_SITE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "https://[evil"},
]


@pytest.mark.parametrize(
    ("path", "headers"),
    [*((path, OF_ANOTHER_SITE[0]) for path in FORMS), *((FORMS[0], headers) for headers in OF_ANOTHER_SITE)],
)
def test_a_form_of_another_site_is_refused(operator: Visitor, path: str, headers: dict[str, str]):
    """A form that another site sent is refused even if it has the right token."""
    answer = operator.post(path.removeprefix("/dashboard").format(**ADDRESS), headers=headers)
    assert answer.status_code == 403
    assert "another web page" in answer.text
    assert operator.get("/keys").url.path == "/dashboard/keys"


def test_the_cookie_keeps_the_key_to_itself(closed: Registry):
    """Scripts cannot read the cookie, other sites cannot send it, and no one can read the key from it."""
    with Visitor(closed) as visitor:
        visitor.http.follow_redirects = False
        answer = visitor.sign_in(str(BOOTSTRAP))
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/dashboard"} <= set(cookie.split("; "))
        assert BOOTSTRAP.secret not in cookie
        assert BOOTSTRAP.id not in cookie


def test_signing_in_starts_a_new_session(closed: Registry):
    """A session that someone else planted before must not become the one that is signed in."""
    with Visitor(closed) as visitor:
        visitor.get("/login")
        planted = visitor.http.cookies[FORM_COOKIE]
        visitor.sign_in(str(BOOTSTRAP))
        assert visitor.http.cookies[COOKIE] != planted
        cookies = {COOKIE: planted, FORM_COOKIE: planted}
        with httpx.Client(base_url=closed.url, cookies=cookies) as other:
            assert other.get("/dashboard").status_code == 303


def test_a_changed_cookie_is_no_session(operator: Visitor):
    """A cookie is accepted only as it was made here."""
    sealed = operator.http.cookies[COOKIE]
    for forged in (sealed[:-2] + "AA", "", "x" * 300, "%00"):
        with httpx.Client(base_url=operator.http.base_url) as http:
            assert http.get("/dashboard", headers={"Cookie": f"{COOKIE}={forged}"}).status_code == 303


def test_a_session_ends_with_its_key(closed: Registry):
    """A key that is revoked opens no page any more, although its session has not ended by itself."""
    made = key(closed, "voices:read", "jobs:read")
    with Visitor(closed, made) as visitor:
        assert visitor.get("/voices").url.path == "/dashboard/voices"
        closed.client.delete(f"/v1/keys/{id_of(made)}", headers=bearer(BOOTSTRAP))
        part = visitor.get("/jobs", headers={"HX-Request": "true"})
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "/dashboard/login?ended=yes")
        assert "was revoked or has expired" in visitor.http.get(part.headers["hx-redirect"]).text


def test_a_page_says_that_its_session_has_ended_and_leads_back(closed: Registry):
    """A person learns why they have to sign in again, and comes back to what they looked at. Whoever never
    signed in is told nothing of the kind.
    """
    made = key(closed, "voices:read")
    with Visitor(closed, made) as visitor, Visitor(closed) as stranger:
        closed.client.delete(f"/v1/keys/{id_of(made)}", headers=bearer(BOOTSTRAP))
        answer = visitor.get("/voices?q=wren")
        assert answer.url.path == "/dashboard/login"
        assert "was revoked or has expired" in answer.text
        assert visitor.sign_in(str(BOOTSTRAP), "/dashboard/voices?q=wren").url.query == b"q=wren"
        stranger.get("/login")
        assert "was revoked or has expired" not in stranger.get("/voices").text


@pytest.mark.parametrize("how", ["signed out", "cookie gone", "key revoked"])
def test_a_form_that_comes_without_a_session_says_how_to_come_back(closed: Registry, how: str):
    """A sign-in page in its place would leave no way back to what was typed."""
    made = key(closed, "voices:write")
    with Visitor(closed, made) as visitor:
        sent = {"name": "x", "consent": "c", "token": visitor.token()}
        if how == "signed out":
            visitor.post("/logout")
        elif how == "cookie gone":
            visitor.http.cookies.clear()
        else:
            closed.client.delete(f"/v1/keys/{id_of(made)}", headers=bearer(BOOTSTRAP))
        page = {"Referer": f"{closed.url}/dashboard/voices/@new"}
        refused = visitor.http.post("/dashboard/voices", data=sent, headers=page)
        again = visitor.http.post("/dashboard/logout", data=sent)
    assert refused.status_code == 401
    assert 'href="/dashboard/login" target="_blank"' in refused.text
    assert "with your browser’s own button" in refused.text
    assert again.url.path == "/dashboard/login", "whoever signs out once more has nothing to come back to"


def test_a_form_of_another_namespace_says_how_to_come_back(operator: Visitor, closed: Registry):
    """Another tab may have chosen another namespace since the page of the form was loaded."""
    sent = {"name": "x", "consent": "c", "token": operator.token()}
    operator.post("/namespace", {"namespace": "theirs"})
    page = {"Referer": f"{closed.url}/dashboard/voices/@new"}
    refused = operator.http.post("/dashboard/voices", data=sent, headers=page)
    assert refused.status_code == 403
    assert "or chosen another namespace since" in refused.text
    assert "with your browser’s own button" in refused.text
    assert 'href="/dashboard/voices/@new">Back to the page before' in refused.text


def test_a_form_stays_when_its_session_has_ended(closed: Registry, name: str):
    """What was typed into a form is not lost with the session: a sentence appears on the page instead."""
    made = key(closed, "voices:read", "voices:write")
    with Visitor(closed, made) as visitor:
        sent = {"name": name, "consent": "c", "token": visitor.token()}
        closed.client.delete(f"/v1/keys/{id_of(made)}", headers=bearer(BOOTSTRAP))
        files = {"audio_sample": ("clip.wav", CLIP, "audio/wav")}
        answer = visitor.http.post(
            "/dashboard/voices", data=sent, files=files, headers={"HX-Request": "true"}
        )
    assert answer.status_code == 401
    assert answer.headers["hx-retarget"] == "#problem"
    assert "hx-redirect" not in answer.headers
    assert "Your session has ended" in answer.text
    assert closed.client.get(f"/v1/voices/{name}", headers=bearer(BOOTSTRAP)).status_code == 404


@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}], ids=["page", "part"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_refusal_that_comes_late_signs_nobody_out(closed: Registry, method: str, headers: dict[str, str]):
    """A person may sign in in another tab before the refusal arrives, which the server cannot know."""
    made = key(closed, "jobs:read")
    with Visitor(closed, made) as visitor:
        closed.client.delete(f"/v1/keys/{id_of(made)}", headers=bearer(BOOTSTRAP))
        visitor.http.follow_redirects = False
        path = "/dashboard/jobs" if method == "GET" else "/dashboard/logout"
        refused = visitor.http.request(method, path, headers=headers)
        assert refused.status_code in {303, 401}
        assert "set-cookie" not in refused.headers


@pytest.mark.parametrize("signed_in", [True, False])
def test_a_refusal_leaves_an_open_sign_in_page_valid(closed: Registry, signed_in: bool):
    """Other tabs are refused while a person signs in, for example because they show the state of jobs."""
    made = key(closed, "jobs:read")
    with Visitor(closed, made if signed_in else None) as visitor:
        closed.client.delete(f"/v1/keys/{id_of(made)}", headers=bearer(BOOTSTRAP))
        token = visitor.token()
        assert visitor.get("/jobs", headers={"HX-Request": "true"}).status_code == 401
        fields = {"key": str(BOOTSTRAP), "token": token}
        assert visitor.http.post("/dashboard/login", data=fields).url.path == "/dashboard"


def test_signing_out_ends_the_session(operator: Visitor):
    """After signing out, going back shows nothing."""
    assert operator.post("/logout").url.path == "/dashboard/login"
    assert COOKIE not in operator.http.cookies
    assert operator.get("/voices").url.path == "/dashboard/login"


def test_a_copy_of_the_cookie_ends_with_the_session(operator: Visitor, closed: Registry):
    """Whoever copied a cookie before is out as well, also if another namespace was chosen since."""
    copies = [operator.http.cookies[COOKIE]]
    operator.post("/namespace", {"namespace": "theirs"})
    copies.append(operator.http.cookies[COOKIE])
    for copied in copies:
        with httpx.Client(base_url=closed.url, cookies={COOKIE: copied}) as other:
            assert other.get("/dashboard").status_code == 200
    operator.post("/logout")
    for copied in copies:
        with httpx.Client(base_url=closed.url, cookies={COOKIE: copied}) as other:
            assert other.get("/dashboard").status_code == 303


@pytest.mark.parametrize("ahead", [90, -13 * 3600], ids=["clock behind", "clock ahead"])
def test_signing_out_ends_the_session_whatever_the_clock_says(
    closed: Registry, monkeypatch: pytest.MonkeyPatch, ahead: int
):
    """The process that is asked to sign a person out may be one that refuses the session because of its
    clock. The cookie must not go on being accepted by the other processes.
    """
    at_the_first = time.time() + ahead
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: at_the_first)
        with Visitor(closed, str(BOOTSTRAP)) as visitor:
            cookies, token = {COOKIE: visitor.http.cookies[COOKIE]}, visitor.token()
    with httpx.Client(base_url=closed.url, cookies=cookies) as browser:
        assert browser.post("/dashboard/logout", data={"token": "0" * 64}).status_code == 403
        assert browser.get("/dashboard/keys").status_code == 303
        answer = browser.post("/dashboard/logout", data={"token": token})
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")
        assert f"{COOKIE}=;" in answer.headers["set-cookie"]
    with monkeypatch.context() as clock, httpx.Client(base_url=closed.url, cookies=cookies) as copy:
        clock.setattr(time, "time", lambda: at_the_first)
        assert copy.get("/dashboard/keys").status_code == 303


def test_signing_in_again_ends_the_session_before(operator: Visitor, closed: Registry):
    """A person who changes to another key leaves nothing behind."""
    before = operator.http.cookies[COOKIE]
    operator.sign_in(key(closed, "voices:read"))
    with httpx.Client(base_url=closed.url, cookies={COOKIE: before}) as other:
        assert other.get("/dashboard").status_code == 303


def test_a_session_of_another_person_goes_on(operator: Visitor, closed: Registry):
    """Signing out ends one session, and no other one of the same key."""
    with Visitor(closed, str(BOOTSTRAP)) as other:
        operator.post("/logout")
        assert other.get("/keys").url.path == "/dashboard/keys"


def test_a_link_from_elsewhere_keeps_the_session(closed: Registry):
    """A browser that follows a link from a chat leaves the cookie out. It is led on, and stays signed in."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    with httpx.Client(base_url=closed.url) as http:
        answer = http.get("/dashboard/voices", params={"q": 'a"&b'}, headers=headers)
    assert answer.status_code == 200
    assert 'content="0;url=/dashboard/voices?q=a%22%26b"' in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("", "No API key was entered."),
        ("  ", "No API key was entered."),
        ("Bearer ", "No API key was entered."),
        ("sreg_x", "mistyped or cut short"),
        ("sreg_" + "0" * 60, "mistyped or cut short"),
        ("ä", "contains characters that none has"),
        ("a\nb: c", "contains characters that none has"),
        pytest.param(str(BOOTSTRAP)[:-1] + "_", "mistyped or cut short", id="nearly"),
    ],
)
def test_a_wrong_key_opens_nothing(closed: Registry, bad: str, said: str):
    """The page says what was wrong with the key, and asks again."""
    with Visitor(closed) as visitor:
        answer = visitor.sign_in(bad)
        assert answer.status_code == 403
        assert 'role="alert"' in answer.text
        assert said in answer.text
        assert visitor.get("/voices").url.path == "/dashboard/login"


@pytest.mark.parametrize("around", [" {} ", "Bearer {}", " bearer  {}\n"])
def test_a_key_may_be_copied_with_what_stands_around_it(closed: Registry, around: str):
    """People copy keys from the headers of commands."""
    with Visitor(closed) as visitor:
        assert visitor.sign_in(around.format(BOOTSTRAP)).url.path == "/dashboard"


@pytest.mark.parametrize(
    ("following", "expected"),
    [
        ("/dashboard/jobs?state=failed", "/dashboard/jobs?state=failed"),
        ("https://evil.example/", "/dashboard"),
        ("//evil.example", "/dashboard"),
        ("/dashboard\\@evil.example", "/dashboard"),
        ("/dashboardevil", "/dashboard"),
        ("/dashboard/../v1/voices", "/dashboard"),
        ("/dashboard/voices/%2E./.%2e/x", "/dashboard"),
        ("/dashboard/voices/..", "/dashboard"),
        ("/dashboard/./jobs?a", "/dashboard"),
        ("/dashboard/voices/..a./...?q=/../b", "/dashboard/voices/..a./...?q=/../b"),
    ],
)
def test_signing_in_leads_to_pages_only(closed: Registry, following: str, expected: str):
    """After signing in, a person comes to the page that was asked for, and never to another site."""
    with Visitor(closed) as visitor:
        visitor.http.follow_redirects = False
        assert visitor.sign_in(str(BOOTSTRAP), following).headers["location"] == expected


def test_no_key_no_sign_in(visitor: Visitor):
    """A registry that requires no keys has no page to sign in at, and no keys to manage."""
    answer = visitor.get("/login")
    assert answer.url.path == "/dashboard"
    assert "Sign out" not in answer.text
    assert "/dashboard/keys" not in answer.text


def test_a_header_does_not_replace_the_session(closed: Registry):
    """Pages take the key from the session alone, so that the token always belongs to the key in use."""
    with httpx.Client(base_url=closed.url, headers=bearer(BOOTSTRAP)) as http:
        assert http.get("/dashboard").status_code == 303


@pytest.mark.parametrize("scope", sorted(ALL_SCOPES))
def test_pages_offer_what_the_key_may_do(closed: Registry, scope: str):
    """What a key may not do isn't shown, and is refused when asked for."""
    with Visitor(closed, key(closed, scope)) as visitor:
        menu = visitor.get().text
        for path in ("/voices", "/voices/@new", "/jobs", "/keys"):
            allowed = scope in (RULES[f"GET /dashboard{path}"] or ())
            assert visitor.get(path).status_code == (200 if allowed else 403)
            assert (f'href="/dashboard{path}"' in menu) == allowed


def test_another_tenants_voice_is_not_found(closed: Registry, name: str):
    """A page shows voices of the key's own namespace only."""
    closed.upload(name, headers=bearer(BOOTSTRAP, "theirs"))
    with Visitor(closed, key(closed, namespace="ours")) as visitor:
        assert visitor.get(f"/voices/{name}").status_code == 404
        assert name not in visitor.get("/voices").text
        assert name not in visitor.get("/jobs").text
        closed.upload("own", headers=bearer(BOOTSTRAP, "ours"))
        compared = visitor.get("/voices/own", params={"beside": name})
        assert compared.status_code == 404
        assert f"There is no voice '{name}' in this namespace." in plain(compared.text)


def test_an_operator_chooses_the_namespace(operator: Visitor, closed: Registry, name: str):
    """A key for any namespace sees one at a time, and says which."""
    closed.upload(name, headers=bearer(BOOTSTRAP, "theirs"))
    assert name not in operator.get("/voices").text
    operator.post("/namespace", {"namespace": "theirs"})
    assert name in operator.get("/voices").text
    assert operator.post("/namespace", {"namespace": "../x"}).status_code == 400


def test_a_page_of_another_namespace_loads_itself_again(operator: Visitor, closed: Registry, name: str):
    """Its live part would show, and offer to change, what is in the namespace that another tab has chosen."""
    closed.upload(name, headers=bearer(BOOTSTRAP, "theirs"))

    def fetch(shown: str) -> httpx.Response:
        return operator.get("/voices", headers={"HX-Request": "true", "X-Page-Token": shown})

    def token() -> str:
        found = re.search(r"""<body hx-headers='{"X-Page-Token": "(\w+)"}'>""", operator.get("/voices").text)
        assert found
        return found[1]

    before = token()
    assert "HX-Refresh" not in fetch(before).headers
    operator.post("/namespace", {"namespace": "theirs"})
    stale = fetch(before)
    assert (stale.headers["HX-Refresh"], stale.text) == ("true", "")
    assert stale.headers["Cache-Control"] == "no-store"
    assert name in fetch(token()).text


def test_a_voice_goes_in_and_its_artifact_comes_out(registry: Registry, visitor: Visitor, name: str):
    """The whole way with forms alone: register, watch, hear, download, delete."""
    answer = visitor.register(name, CLIP, ref_text="The quick brown fox.")
    assert "0 of 1 profiles ready" in answer.text
    assert 'hx-trigger="every 1s"' in answer.text
    registry.worker.finish_all(name)
    page = visitor.http.get(answer.url).text
    assert "every 1s" not in page
    assert "speaker_embedding" in page
    assert "The quick brown fox." in page
    [audio] = re.findall(r'<audio [^>]*src="([^"]+)"', page)
    heard = visitor.http.get(audio, headers={"Range": "bytes=0-3"})
    assert (heard.status_code, heard.content) == (206, CLIP[:4])
    [download] = re.findall(r'href="([^"]+/artifacts/[^"]+)"', page)
    file = visitor.http.get(download)
    assert file.content == registry.file(name).content
    assert file.headers["content-disposition"] == f'attachment; filename="{name}-1-{PROFILE}.safetensors"'
    gone = visitor.post(answer.url.path.removeprefix("/dashboard") + "/delete")
    assert gone.url.path == answer.url.path
    assert registry.client.get(f"/v1/voices/{name}").status_code == 404


@pytest.mark.parametrize("page", ["", "/voices"])
def test_an_empty_registry_offers_a_sample_voice(start: Start, page: str):
    """The first voice is one click away, without a clip of one's own. A second click makes no second one."""
    registry = start()
    with Visitor(registry) as visitor:
        assert 'action="/dashboard/voices/sample"' in visitor.get(page).text
        for _ in range(2):
            assert "Synthesised speech" in visitor.post("/voices/sample").text
        assert 'action="/dashboard/voices/sample"' not in visitor.get(page).text
    [voice] = registry.client.get("/v1/voices").json()["data"]
    assert (voice["name"], voice["versions"]) == ("Sample", 1)


def test_a_sample_voice_leaves_a_voice_of_its_name_alone(start: Start):
    """Somebody's own voice may have any name."""
    registry = start()
    with Visitor(registry) as visitor:
        visitor.register("sample", CLIP)
        visitor.post("/voices/sample")
    voices = {voice["name"]: voice for voice in registry.client.get("/v1/voices").json()["data"]}
    assert {name: voice["versions"] for name, voice in voices.items()} == {"sample": 1, "Sample 2": 1}


def test_a_second_clip_is_a_version(registry: Registry, visitor: Visitor, name: str):
    """A further upload adds a version, and the same upload again adds nothing and says so."""
    registry.ready(name)
    again = visitor.register(name, CLIP)
    assert "nothing was added" in again.text
    second = visitor.register(name, CLIP, ref_text="Another text.")
    assert "version 1 is served" in second.text
    assert registry.client.get(f"/v1/voices/{name}").json()["latest"] == 2


def form_of(page: str, label: str) -> tuple[str, dict[str, str]]:
    """Return the path and the fields of the first form whose button begins with a label."""
    for action, content in re.findall(
        r'<form method="post" action="/dashboard([^"]+)"[^>]*>(.*?)</form>', page, re.S
    ):
        if re.search(rf"<button[^>]*>{label}", content):
            fields = re.findall(r'name="([^"]+)" value="([^"]*)"', content)
            return action, {name: html.unescape(value) for name, value in fields}
    raise AssertionError(f"no form {label}")


def default_of(registry: Registry, name: str) -> tuple[int, bool]:
    shown = registry.client.get(f"/v1/voices/{name}/aliases/default").json()
    return shown["version"], shown["by_hand"]


def test_default_is_moved_by_hand_and_put_back(registry: Registry, visitor: Visitor, name: str):
    """A voice that sounds wrong is rolled back by one button, and that by another, as if nothing had been."""
    make_versions(registry, name, 3)
    moved = visitor.post(*form_of(visitor.get(f"/voices/{name}").text, "Make default"))
    assert default_of(registry, name) == (2, True)
    assert "Before, it was version 3, and <code>default</code> moved by itself" in moved.text
    for _ in range(2):  # a second click on the same button
        undone = visitor.post(*form_of(moved.text, "Undo"))
        assert default_of(registry, name) == (3, False)
    visitor.post(*form_of(undone.text, "Undo"))
    assert default_of(registry, name) == (2, True)
    assert "Before, it was version" not in visitor.http.get(moved.url).text
    path = f"/voices/{name}"
    visitor.post(*form_of(visitor.get(path).text, "Let it move by itself"))
    assert default_of(registry, name) == (3, False)
    assert "Let it move by itself" not in visitor.get(path).text
    history = registry.client.get(f"/v1/voices/{name}/history").json()["data"]
    assert [one["did"] for one in history[:5]] == ["alias"] * 4 + ["register"]


def test_a_move_that_somebody_made_meanwhile_stays(registry: Registry, visitor: Visitor, name: str):
    """Two people must not overtake each other, and an old page must not undo what came after it."""
    make_versions(registry, name, 3)
    old = visitor.get(f"/voices/{name}").text
    moved = visitor.post(*form_of(old, "Make default"))
    put(registry, name, "default", 1)
    for page, label in ((old, "Make default"), (moved.text, "Undo")):
        refused = visitor.post(*form_of(page, label))
        assert refused.status_code == 412
        assert "means version 1 now. Nothing was changed." in refused.text
    assert default_of(registry, name) == (1, True)
    action, fields = form_of(old, "Make default")
    for wrong in (
        {"version": "9"},
        {"version": "x"},
        {"version": "\u00b2"},
        {"moved": "2"},
        {"moved": ""},
        {"former": ""},
        {"alias": "latest"},
    ):
        assert visitor.post(action, fields | {"version": "3"} | wrong).status_code in {400, 404, 412}
    assert default_of(registry, name) == (1, True)


def test_the_page_of_a_voice_tells_aliases_and_history(
    registry: Registry, visitor: Visitor, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Also of aliases and versions that are gone. A history of many changes has pages."""
    make_versions(registry, name, 3)
    put(registry, name, "prod", 1)
    put(registry, name, "old", 2)
    registry.client.delete(f"/v1/voices/{name}/aliases/old")
    registry.client.delete(f"/v1/voices/{name}/versions/2")
    monkeypatch.setattr(history, "_CHANGES", 4)
    page = visitor.get(f"/voices/{name}")
    text = plain(page.text)
    for said in (
        "prod 1",
        "latest 3",
        "Version 2 deleted",
        "Alias old removed",
        "Alias prod set to version 1",
    ):
        assert said in text
    assert "Version 1 registered" not in text
    [earlier] = re.findall(r'href="([^"]+)#history"', page.text)
    rest = plain(visitor.http.get(html.unescape(earlier)).text)
    assert "Version 1 registered" in rest
    assert "Version 2 deleted" not in rest


def test_the_history_names_the_keys_of_those_who_may_know_them(
    operator: Visitor, closed: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Nobody knows a colleague by the id of a key. The name stays when the key is revoked, and the names of
    other namespaces' keys are not told. Without the bucket, a page shows the ids of keys that it lacks.
    """
    studio, ops = (
        key(closed, name=f"{who} <b>", namespace=of) for who, of in (("studio", "mine"), ("ops", "*"))
    )
    closed.upload(name, headers=bearer(studio))
    closed.upload(name, clip=OTHER_CLIP, headers=bearer(ops, "mine"))
    closed.client.delete(f"/v1/keys/{id_of(studio)}", headers=bearer(BOOTSTRAP))
    operator.post("/namespace", {"namespace": "mine"})
    with Visitor(closed, key(closed, namespace="mine")) as visitor:
        for whose, told in ((visitor, f"{id_of(ops)} Version 1"), (operator, "ops <b> Version 1")):
            page = whose.get(f"/voices/{name}").text
            past = plain(page.partition('id="history"')[2])
            assert told in re.sub(r"\S+ \S+ ago ", "", past)
            assert "studio <b>" in past
            assert f'title="Key {id_of(studio)}"' in page
            assert list(strange_elements(Page(page))) == []
        look = closed.keys.read
        monkeypatch.setattr(closed.keys, "recall", lambda _: None)
        assert "studio <b>" in plain(visitor.get(f"/voices/{name}").text)

        def lose(key_id: str) -> Any:
            if key_id == id_of(studio):
                raise Unavailable("The bucket does not answer.", retry_after_seconds=1)
            return look(key_id)

        monkeypatch.setattr(closed.keys, "read", lose)
        page = visitor.get(f"/voices/{name}")
        assert (page.status_code, id_of(studio) in plain(page.text)) == (200, True)


def test_the_history_names_the_bootstrap_key(operator: Visitor, closed: Registry, name: str):
    """It has no document that names it, and its id tells nobody that the operator was at work."""
    closed.upload(name, headers=bearer(BOOTSTRAP))
    page = operator.get(f"/voices/{name}").text
    past = plain(page.partition('id="history"')[2])
    assert "bootstrap key" in past
    assert BOOTSTRAP.id not in past
    assert f'title="Key {BOOTSTRAP.id}"' in page


def plain(page: str) -> str:
    """Return the text of a page with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_a_deleted_voice_is_brought_back(start: Start):
    """The page says until when that is possible, also under the address that the voice had, and then no more.
    A name may hold what has a meaning in addresses.
    """
    registry, name = start(), "50%?a#b"
    make_versions(registry, name)
    now, named = registry.opened.speakers.now(), f"/voices/{quote(name)}"
    registry.opened.speakers.now = lambda: now
    address = f"/voices/{registry.client.get(f'/v1{named}').json()['id']}"
    with Visitor(registry) as visitor:
        deleted = plain(visitor.post(f"{address}/delete").text)
        assert f"{datetime.fromtimestamp(now + 86_400, UTC):%Y-%m-%d %H:%M:%S UTC}" in deleted
        assert "with its 2 versions" in deleted
        assert "Voice deleted" in deleted
        part = visitor.get(address, headers={"HX-Request": "true"})
        assert (part.status_code, part.headers["hx-retarget"]) == (404, "#problem")
        back = visitor.post(*form_of(visitor.get(address).text, "Undelete it"))
        assert back.url.path == f"/dashboard{address}"
        assert "Voice undeleted" in back.text
        visitor.post(f"{address}/delete")
        registry.upload(name)
        assert visitor.get(address).status_code == 404
        assert visitor.post(f"{named}/undelete", {"life": "1"}).status_code == 409
        registry.delete(name)
        assert visitor.get(named).status_code == 200
        registry.opened.speakers.now = lambda: now + 86_401
        assert [visitor.get(path).status_code for path in (address, named)] == [404, 404]
        assert visitor.post(f"{named}/undelete", {"life": "1"}).status_code == 404


def test_undelete_restores_the_voice_that_its_page_showed(registry: Registry, name: str):
    """Another voice of the same name, which somebody registered and deleted meanwhile, stays deleted."""
    registry.upload(name)
    registry.delete(name)
    with Visitor(registry) as visitor:
        path, sent = form_of(visitor.get(f"/voices/{name}").text, "Undelete it")
        registry.upload(name, clip=OTHER_CLIP)
        registry.delete(name)
        late = visitor.post(path, sent)
        assert late.status_code == 412
        assert "was deleted again after the page with this button was loaded" in html.unescape(late.text)
        assert registry.client.get(f"/v1/voices/{name}").status_code == 404
        again = visitor.post(*form_of(visitor.get(f"/voices/{name}").text, "Undelete it"))
    assert "Voice undeleted" in again.text
    assert registry.client.get(f"/v1/voices/{name}").json()["version"] == 2


def test_made_up_names_are_limited_on_pages_too(start: Start):
    """A name without a voice is looked for in the bucket, whichever way it is asked for, and once."""
    closed = start(access=CLOSED, rates=RateSettings(unknown_names_per_minute=2))
    closed.app.state.parts.services.access.rate_limits.now = lambda: 1_775_133_885.0
    stored = closed.opened.speakers.documents.stored
    read, asked = stored.read, list[str]()
    with Visitor(closed, key(closed)) as visitor, pytest.MonkeyPatch.context() as patches:
        patches.setattr(closed.opened.speakers.documents.missing, "holds", lambda *_: False)
        patches.setattr(stored, "read", lambda path: (asked.append(path), read(path))[1])
        answers = [visitor.get(f"/voices/nobody-{number}") for number in range(3)]
    assert [answer.status_code for answer in answers] == [404, 404, 429]
    assert "2 voices that do not exist" in answers[2].text
    assert [path for path in asked if "/s/" in path] == ["default/s/nobody-0.json", "default/s/nobody-1.json"]


def test_made_up_names_are_limited_in_comparisons_too(start: Start):
    """The form that compares two voices is no way around the limit."""
    closed = start(access=CLOSED, rates=RateSettings(unknown_names_per_minute=2))
    closed.app.state.parts.services.access.rate_limits.now = lambda: 1_775_133_885.0
    closed.upload("own", headers=bearer(BOOTSTRAP))
    with Visitor(closed, key(closed)) as visitor:
        answers = [visitor.get(f"/voices/own?beside=nobody-{number}") for number in range(3)]
    assert [answer.status_code for answer in answers] == [404, 404, 429]


def test_a_key_that_may_only_look_gets_no_button(closed: Registry, name: str):
    """Neither the moves nor the way back of a deleted voice are offered, and both are refused."""
    made = key(closed, "voices:read")
    for clip in (CLIP, OTHER_CLIP):
        closed.upload(name, clip=clip, headers=bearer(BOOTSTRAP))
    with Visitor(closed, made) as visitor:
        page = visitor.get(f"/voices/{name}").text.partition("<main")[2]
        assert not re.search(r'<form method="post"|Delete…|Edit|Move…', page)
        for path in ("aliases", "aliases/remove", "about", "versions/1/delete", "delete"):
            assert visitor.post(f"/voices/{name}/{path}", {"version": "1"}).status_code == 403
        assert visitor.get(f"/voices/{name}/about").status_code == 403
        closed.delete(name)
        page = visitor.get(f"/voices/{name}").text.partition("<main")[2]
        assert "it can be undeleted" in page
        assert "<form" not in page
        assert visitor.post(f"/voices/{name}/undelete").status_code == 403


@pytest.mark.parametrize(
    ("clip", "said"),
    [
        (b"not audio at all", "Unsupported audio: this is text"),
        (b"", "No audio file was chosen"),
        (b"\0" * 10_900_000, "Accepted: a clip of up to"),
        (clips.wav(61, sample_rate=8000), "Reference audio too long (61.0s). Maximum 30s"),
    ],
)
def test_what_is_no_clip_is_refused_in_words(
    registry: Registry, visitor: Visitor, name: str, clip: bytes, said: str
):
    """A file that is no audio, empty or too large gets a sentence on the page, and nothing is stored."""
    file = {"audio_sample" if clip else "nothing": ("clip.wav", clip, "audio/wav")}
    token = visitor.token()
    data = {"name": name, "consent": "c", "token": token}
    answer = visitor.http.post("/dashboard/voices", data=data, files=file, headers={"HX-Request": "true"})
    assert answer.status_code in {400, 413, 415, 422}
    assert answer.headers["hx-retarget"] == "#problem"
    assert said in answer.text
    assert registry.client.get(f"/v1/voices/{name}").status_code == 404


def test_a_job_is_cancelled(registry: Registry, visitor: Visitor, name: str):
    """A job that waits can be canceled, and its voice says that it was."""
    job = registry.upload(name)["job_id"]
    assert f"/dashboard/jobs/{job}/cancel" in visitor.get("/jobs").text
    visitor.post(f"/jobs/{job}/cancel")
    assert registry.client.get(f"/v1/jobs/{job}").json()["state"] == "canceled"
    assert "canceled" in visitor.get(f"/voices/{name}").text


def test_a_failed_job_says_why_and_can_be_tried_again(registry: Registry, visitor: Visitor, name: str):
    """The reason stands where a person looks, with the action beside it."""
    registry.upload(name)
    registry.worker.fail_all(name, WorkerError("the encoder found no speech"))
    assert "the encoder found no speech" in visitor.get("/jobs?state=failed").text
    page = visitor.get(f"/voices/{name}").text
    assert "the encoder found no speech" in page
    assert "Try again" in page
    visitor.post(f"/voices/{name}/versions/1/extractions", {"profile": PROFILE})
    registry.worker.finish_all(name)
    assert registry.client.get(f"/v1/voices/{name}").json()["state"] == "ready"


def test_the_overview_says_what_needs_attention(start: Start):
    """Voices that wait for a worker that does not exist stand on top, with what to do."""
    registry = start()
    registry.upload("alice")
    with Visitor(registry) as visitor:
        page = visitor.get().text
        assert f"1 voice waits for {PROFILE}: no worker serves it." in page
        assert f"Start a worker with SPEAKER_EXTRACTOR_PROFILES={PROFILE}." in page
        registry.opened.workers.beat("worker-1", {PROFILE: registry.worker.fingerprint})
        registry.worker.finish_all()
        assert registry.client.get("/v1/voices/alice").json()["state"] == "ready"


def test_every_page_about_an_untrained_voice_says_so(start: Start):
    """Noise is never taken for a voice, neither while it is made nor when it is ready."""
    registry = start(profiles=(PROFILE,))
    with Visitor(registry) as visitor:
        paths = ("", "/voices", "/profiles", f"/voices/{registry.ready('alice')['id']}")
        assert [path for path in paths if "untrained weights" in visitor.get(path).text] == []
        registry.worker.announce("sha256:" + "9" * 64, untrained=True)
        paths = ("", "/voices?q=bob", "/profiles", f"/voices/{registry.upload('bob')['id']}")
        assert [path for path in paths if "untrained weights" not in visitor.get(path).text] == []
        registry.worker.finish_all("bob")
        assert [path for path in paths if "untrained weights" not in visitor.get(path).text] == []


def test_the_profiles_name_a_failed_proof_without_naming_its_profile_again(start: Start):
    """The reason of a worker begins with the profile, for its log. On the page the profile is the heading."""
    registry = start()
    proof = FailedProof(worker="w-1", device="cpu", reason=f"{PROFILE}: codes differ")
    registry.opened.workers.report_failed({PROFILE: proof})
    with Visitor(registry) as visitor:
        assert "Proof failed on w-1 (cpu): codes differ</p>" in visitor.get("/profiles").text


def test_the_overview_draws_the_jobs_of_the_last_hour(start: Start):
    """The charts show the jobs of one namespace, each in the bar of its time, and none that is older."""
    registry = start()
    for name in ("one", "two", "three"):
        registry.ready(name)
    registry.upload("bad")
    registry.worker.fail_all("bad", WorkerError("no speech"))
    now = time.time()
    records, generation = registry.opened.jobs.records, registry.generation()
    jobs = records.page("default", limit=10).found
    for job, age in zip(jobs, (0, 1800, 7200, 100_000), strict=True):
        registry.redis.zadd(jobs_key(generation, "default", job.state), {job.id: now - age})
    hour, day = Activity(records, registry.app.state.parts.server_errors, now=lambda: now).charts("default")
    assert hour.totals == {"succeeded": 1, "unfinished": 0, "failed": 1}
    assert day.totals == {"succeeded": 2, "unfinished": 0, "failed": 1}
    assert [bar.total for bar in hour.bars][-1] == 1
    assert [chart.bars[-1].end for chart in (hour, day)] == [now, now], "no axis leads into the future"
    assert [len(chart.ticks) for chart in (hour, day)] == [3, 4]
    assert sum(bar.start <= now - 1800 < bar.end and bar.total == 1 for bar in hour.bars) == 1
    assert not list(
        Activity(records, registry.app.state.parts.server_errors, records.now).charts("other")[1].drawn
    )
    with Visitor(registry) as visitor:
        page = visitor.get().text
    assert "Last hour" in page
    assert page.count("<rect") == 5
    assert all(
        datetime.fromtimestamp(tick, UTC).strftime("%H:%M") in page for tick in (*hour.ticks, *day.ticks)
    )


def test_a_key_is_shown_once_and_revoked(operator: Visitor, closed: Registry):
    """A new key appears in one answer only. Its revocation is effective at once."""
    made = operator.post(
        "/keys", {"name": "ci", "namespace": "ours", "scope:voices:read": "on", "days": "30"}
    )
    [token] = re.findall(r'value="(sreg_[^"]+)"', made.text)
    assert made.headers["cache-control"] == "no-store"
    assert closed.client.get("/v1/voices", headers=bearer(token)).status_code == 200
    assert token not in operator.get("/keys").text
    operator.post(f"/keys/{id_of(token)}/revoke")
    assert closed.client.get("/v1/voices", headers=bearer(token)).status_code == 401


def test_a_key_is_rotated_and_the_old_one_ends_when_it_was_chosen(operator: Visitor, closed: Registry):
    """The new key has the rights of the old one, which holders can use until they have the new one."""
    old = key(closed, "voices:read", name="ci", namespace="ours")
    rotated = operator.post(f"/keys/{id_of(old)}/rotate", {"overlap": "3600"})
    assert rotated.status_code == 201
    assert rotated.headers["cache-control"] == "no-store"
    [new] = re.findall(r'value="(sreg_[^"]+)"', rotated.text)
    assert f"sreg_{id_of(old)}…</code>, which ends <time" in rotated.text
    assert new not in operator.get("/keys").text
    for one in (old, new):
        assert closed.client.get("/v1/voices", headers=bearer(one)).status_code == 200
        assert closed.client.get("/v1/jobs", headers=bearer(one)).status_code == 403
    at_once = operator.post(f"/keys/{id_of(old)}/rotate", {"overlap": "0"})
    assert f"sreg_{id_of(old)}…</code>, which has ended" in at_once.text
    assert closed.client.get("/v1/voices", headers=bearer(old)).status_code == 401
    assert operator.post(f"/keys/{id_of(old)}/rotate", {"overlap": "0"}).status_code == 409
    assert operator.post(f"/keys/{id_of(new)}/rotate", {"overlap": "5"}).status_code == 400


def _keys_on(page: str) -> list[str]:
    return re.findall(r'data-label="Key"><code>sreg_([^…]+)…', page)


def _part_of(page: str) -> dict[str, str]:
    """Return the fields by which the forms of a page lead back to it."""
    return dict(re.findall(r'type="hidden" name="(q|after)" value="([^"]*)"', page))


def test_keys_have_pages(operator: Visitor, closed: Registry, name: str, monkeypatch: pytest.MonkeyPatch):
    """Each key can be found and ended, however many newer ones there are. Its page comes back afterwards."""
    monkeypatch.setattr(keys, "_PAGE_SIZE", 2)
    made = {id_of(key(closed, "engine", name=name)) for _ in range(6)}
    pages = [operator.get("/keys", params={"q": name})]
    while found := re.search(r'href="/dashboard(/keys[^"]+)" rel="next"', pages[-1].text):
        pages.append(operator.get(html.unescape(found[1])))
    listed = [_keys_on(page.text) for page in pages]
    assert [len(page) for page in listed] == [2, 2, 2]
    assert {one for page in listed for one in page} == made
    part = _part_of(pages[1].text)
    revoked = operator.post(f"/keys/{listed[1][0]}/revoke", part)
    assert (revoked.url, _keys_on(revoked.text)) == (pages[1].url, listed[1])
    rotated = operator.post(f"/keys/{listed[1][1]}/rotate", {"overlap": "3600", **part})
    assert rotated.status_code == 201
    assert _part_of(rotated.text) == part
    assert "There are no older keys." in operator.get("/keys", params={"after": "1-0"}).text


def test_keys_are_found_by_name_and_id(closed: Registry, name: str, monkeypatch: pytest.MonkeyPatch):
    """The text of a key's column can be pasted, and a search has pages of its own."""
    monkeypatch.setattr(keys, "_PAGE_SIZE", 1)
    names = ("C-I 1", "c-i 2", "x")  # with a hyphen, which no id has
    first, second, _ = (id_of(key(closed, "engine", namespace=name, name=one)) for one in names)
    with Visitor(closed, key(closed, "admin", namespace=name)) as visitor:
        for text, wanted in ((f"sreg_{first}…", first), (first, first), (" C-i 2 ", second)):
            assert _keys_on(visitor.get("/keys", params={"q": text}).text) == [wanted]
        begins = visitor.get("/keys", params={"q": "c-i"}).text
        [following] = re.findall(r'href="/dashboard(/keys[^"]+)" rel="next"', begins)
        both = _keys_on(begins) + _keys_on(visitor.get(html.unescape(following)).text)
        assert sorted(both) == sorted([first, second])
        assert "No key matches." in visitor.get("/keys", params={"q": "nobody"}).text


@pytest.mark.parametrize("after", ["x", "1", "1-", "-1-a", "1-Ä", "1-a\n", "9" * 16 + "-a"])
def test_a_wrong_position_among_keys_changes_nothing(operator: Visitor, closed: Registry, after: str):
    """A form with it is refused before a new key is made, which nobody would see."""
    made = key(closed, "voices:read", name="kept")
    before = _keys_on(operator.get("/keys").text)
    assert operator.get("/keys", params={"after": after}).status_code == 400
    for action in ("rotate", "revoke"):
        form = {"overlap": "0", "after": after}
        assert operator.post(f"/keys/{id_of(made)}/{action}", form).status_code == 400
    assert _keys_on(operator.get("/keys").text) == before
    assert closed.client.get("/v1/voices", headers=bearer(made)).status_code == 200


def test_a_tenant_manages_its_own_keys_only(closed: Registry):
    """A tenant's administrator neither sees nor revokes nor rotates nor makes keys of others."""
    foreign = key(closed, "engine", namespace="theirs", name="their-key")
    with Visitor(closed, key(closed, "admin", namespace="ours")) as visitor:
        assert "their-key" not in visitor.get("/keys").text
        assert visitor.post(f"/keys/{id_of(foreign)}/revoke").status_code == 404
        assert visitor.post(f"/keys/{id_of(foreign)}/rotate", {"overlap": "0"}).status_code == 404
        made = visitor.post("/keys", {"name": "x", "namespace": "theirs", "scope:engine": "on"})
        assert made.status_code == 403
    assert closed.client.get("/v1/voices", headers=bearer(foreign)).status_code == 200


def test_pages_load_nothing_inline_and_nothing_from_elsewhere(operator: Visitor, closed: Registry, name: str):
    """The policy forbids inline code, so no page may contain any, and all assets are the registry's own."""
    closed.ready(name, headers=bearer(BOOTSTRAP))
    for path in ("", "/voices", "/voices/@new", f"/voices/{name}", "/jobs", "/profiles", "/keys", "/nowhere"):
        page = operator.get(path)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["cache-control"] == "no-store"
        assert not re.search(r"<style|style=|<script(?! src=)|javascript:| on[a-z]+=", page.text)
        for address in re.findall(r'(?:src|href|action|hx-get|hx-post)="([^"]*)"', page.text):
            assert address.startswith(("/", "#"))
        for asset in re.findall(r'"(/dashboard/assets/[^"]*)"', page.text):
            assert operator.http.get(asset).headers["cache-control"] == "public, max-age=31536000, immutable"
            of_another_release = operator.http.get(asset.partition("?")[0], params={"v": "0" * 12})
            assert of_another_release.headers["cache-control"] == "no-cache"


def leads_to(page: str) -> set[str]:
    """Return where the navigation and the main part of a page lead, without the way back to the overview."""
    return set(re.findall(r'href="([^"]+)"', page.partition("<header")[2].partition("<footer")[0])) - {
        "/dashboard"
    }


def test_an_unknown_address_leads_on(closed: Registry, visitor: Visitor, operator: Visitor):
    """Whoever is signed in, or needs no key, keeps the navigation. Others are led to sign in, and to ask does
    not count as a wrong key.
    """
    assert leads_to(visitor.get("/nowhere").text) == {
        "/dashboard/voices",
        "/dashboard/jobs",
        "/dashboard/profiles",
    }
    for wrong in (operator.get("/nowhere"), operator.get("/voices/a/b/c"), operator.post("/voices/@new")):
        assert wrong.status_code in {404, 405}
        assert "/dashboard/keys" in leads_to(wrong.text)
    with Visitor(closed, key(closed, "admin")) as admin:
        answer = admin.get("/nowhere")
        assert leads_to(answer.text) == {"/dashboard/profiles", "/dashboard/keys"}
        assert "Go on from the overview" in answer.text
    with Visitor(closed) as stranger:
        failed = dict(closed.app.state.parts.services.access._failures)
        assert leads_to(stranger.get("/nowhere?a=b").text) == {
            "/dashboard/login?next=/dashboard/nowhere%3Fa%3Db"
        }
        assert dict(closed.app.state.parts.services.access._failures) == failed


def test_a_page_that_is_not_allowed_says_where_to_go(closed: Registry):
    """A person is not left at a dead end by a link that a colleague with more rights sent."""
    with Visitor(closed, key(closed, "voices:read")) as visitor:
        refused = visitor.get("/keys")
        assert refused.status_code == 403
        assert leads_to(refused.text) == {
            "/dashboard/voices",
            "/dashboard/profiles",
            "/dashboard/login?next=/dashboard/keys",
        }
        again = visitor.http.get("/dashboard/login?next=/dashboard/keys")
        assert "API key" in again.text
        assert visitor.sign_in(key(closed, "admin"), "/dashboard/keys").url.path == "/dashboard/keys"


@pytest.mark.parametrize("name", ["Nora Two", "Zoë", "100%25 1", "what?"])
def test_signing_in_leads_to_a_voice_whose_address_is_encoded(closed: Registry, name: str):
    """Pages of jobs link to voices by their names."""
    address = f"/dashboard/voices/{quote(name)}"
    with Visitor(closed) as visitor:
        first = visitor.http.get(address, follow_redirects=False)
        assert parse_qs(urlsplit(first.headers["location"]).query) == {"next": [address]}
        signed_in = visitor.sign_in(key(closed, "voices:read"), address)
        assert signed_in.url.raw_path.decode() == address


def test_an_address_too_long_to_lead_back_to_is_left_out(closed: Registry):
    """The page to sign in at would refuse it."""
    with Visitor(closed) as visitor:
        first = visitor.http.get("/dashboard/voices", params={"q": "あ" * 128}, follow_redirects=False)
        assert first.headers["location"] == "/dashboard/login"


def test_only_assets_are_served_as_assets(visitor: Visitor):
    """No path leads out of the folder of assets."""
    for path in ("/assets/nothing.js", "/assets/base.html", "/assets/%252e%252e"):
        assert visitor.get(path).status_code == 404


def test_lists_have_pages_and_filters(start: Start, monkeypatch: pytest.MonkeyPatch):
    """Lists go on where they ended, and a filter stays while paging."""
    monkeypatch.setattr(voices, "_PAGE_SIZE", 3)
    registry = start()
    for number in range(5):
        registry.upload(f"voice-{number:02}", clip=None, speaker_embedding=EMBEDDING)
    with Visitor(registry) as visitor:
        first = visitor.get("/voices")
        [following] = re.findall(r'href="([^"]+)" rel="next"', first.text)
        second = visitor.http.get(html.unescape(following)).text
        assert "voice-02" in first.text
        assert "voice-04" in second
        assert "voice-02" not in second
        found = visitor.get("/voices", params={"q": "E-03"}).text
        assert "voice-03" in found
        assert "voice-01" not in found
        assert visitor.get("/voices", params={"state": "wrong"}).status_code == 400
        assert visitor.get("/voices", params={"profile": "wrong"}).status_code == 404


def test_voices_are_found_by_their_labels(registry: Registry, visitor: Visitor, name: str):
    """All given labels must match, and what is no label gets a sentence."""
    for end, labels in (("left", {"team": "blue"}), ("right", {"team": "blue", "tier": "gold"})):
        registry.upload(f"{name}-{end}")
        registry.client.patch(f"/v1/voices/{name}-{end}", json={"labels": labels})
    for label, ends in (
        ("team=blue", {"left", "right"}),
        ("team=blue, tier=gold", {"right"}),
        ("team=red", set()),
    ):
        page = visitor.get("/voices", params={"q": name, "label": label}).text
        assert {end for end in ("left", "right") if f"{name}-{end}</bdi>" in page} == ends
        for end in ends:  # each label that the list shows leads to the voices that have it
            [shown] = re.findall(rf">{name}-{end}</bdi>.*?</th>", page, re.DOTALL)
            assert 'href="/dashboard/voices?label=team%3Dblue"' in shown
            assert ("tier%3Dgold" in shown) == (end == "right")
    refused = visitor.get("/voices", params={"label": "<b>"})
    assert refused.status_code == 400
    assert "Accepted: KEY=VALUE" in refused.text
    assert "<b>" not in refused.text


def test_a_label_without_a_value_leads_to_its_voices(registry: Registry, visitor: Visitor, name: str):
    """A filter needs a value, which may be empty, and the label is shown as it was given."""
    registry.upload(name)
    registry.client.patch(f"/v1/voices/{name}", json={"labels": {"gold": ""}})
    page = visitor.get("/voices", params={"q": name}).text
    [address] = re.findall(r'href="/dashboard(/voices\?label=[^"]*)"[^>]*><bdi>gold</bdi>', page)
    found = visitor.get(address)
    assert found.status_code == 200
    assert f"{name}</bdi>" in found.text


@pytest.mark.parametrize("how", ["emptied", "rolled back", "secret deleted"])
def test_no_cookie_outlives_a_loss_of_redis(start: Start, valkey: Any, how: str):
    """All API processes read each other's sessions. When Redis may have forgotten which of them have ended,
    everybody signs in again.
    """
    url = empty(valkey, 12)
    one = start(url, access=CLOSED)
    other = start(url, one.folder, access=CLOSED)

    def opened(cookie: str) -> set[int]:
        cookies = {COOKIE: cookie}
        return {
            httpx.get(f"{process.url}/dashboard/keys", cookies=cookies).status_code
            for process in (one, other)
        }

    with Visitor(one, str(BOOTSTRAP)) as leaving, Visitor(other, str(BOOTSTRAP)) as staying:
        left, kept = (visitor.http.cookies[COOKIE] for visitor in (leaving, staying))
        assert opened(left) == opened(kept) == {200}
        dump = {key: one.redis.dump(key) for key in one.redis.scan_iter()}
        one.opened.generation.check()
        leaving.post("/logout")
        assert (opened(left), opened(kept)) == ({303}, {200})
        if how == "secret deleted":
            one.redis.delete(*one.redis.scan_iter("sr:*:seal_secret"))
        else:
            one.redis.flushdb()
            for key, value in dump.items() if how == "rolled back" else ():
                one.redis.restore(key, 0, value)
            one.opened.generation.check()  # as every process does once a second
        assert opened(left) == opened(kept) == {303}
        staying.sign_in(str(BOOTSTRAP))
        assert opened(staying.http.cookies[COOKIE]) == {200}
        assert opened(left) == opened(kept) == {303}


@pytest.mark.parametrize(
    "other",
    [
        b"theme=dark mode",
        b"foo",
        b'prefs={"a":1}',
        b"version=3",
        b"foo[bar]=1",
        "who=Jörg".encode(),
        COOKIE.encode() + b"=",
        b"x" + COOKIE.encode() + b"=1",
        b"",
    ],
)
def test_cookies_of_other_applications_sign_nobody_out(operator: Visitor, other: bytes):
    """Browsers send all cookies of a host, and others may set cookies that no standard allows."""
    own = f"{COOKIE}={operator.http.cookies[COOKIE]}".encode()
    with httpx.Client(base_url=operator.http.base_url) as http:
        for sent in ([other + b"; " + own], [own + b";" + other], [other, own], [own, other]):
            headers = [(b"Cookie", one) for one in sent]
            assert http.get("/dashboard/keys", headers=headers).status_code == 200


def test_of_two_cookies_of_one_name_the_first_counts(operator: Visitor):
    """Browsers send the one with the longer path first. An application at `/` could use the same name."""
    cookie = f"{COOKIE}={operator.http.cookies[COOKIE]}; {COOKIE}=elsewhere"
    with httpx.Client(base_url=operator.http.base_url) as http:
        assert http.get("/dashboard/keys", headers={"Cookie": cookie}).status_code == 200


def test_a_link_over_plain_http_leaves_the_session_as_it_is(closed: Registry, operator: Visitor):
    """Browsers leave the session's cookie out then, and do not tell why. The sign-in page that they show must
    not sign the other tabs out, and its form signs in.
    """
    before = operator.http.cookies[COOKIE]
    with Visitor(closed) as linked:
        page = linked.get("/jobs")
        assert page.url.path == "/dashboard/login"
        assert set(linked.http.cookies) == {FORM_COOKIE}
        operator.http.cookies.update(linked.http.cookies)
    assert operator.get("/keys").url.path == "/dashboard/keys"
    [token] = TOKEN.findall(page.text)
    sent = {"key": str(BOOTSTRAP), "token": token}
    assert operator.http.post("/dashboard/namespace", data=sent).status_code == 403
    assert operator.http.post("/dashboard/login", data=sent).url.path == "/dashboard"
    assert set(operator.http.cookies) == {COOKIE}
    with httpx.Client(base_url=closed.url, cookies={COOKIE: before}) as other:
        assert other.get("/dashboard").status_code == 303
