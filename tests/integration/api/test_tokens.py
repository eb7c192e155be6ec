"""Tests of tokens of an OpenID provider. The provider is a server of the tests on
loopback, with real signatures.
"""

import asyncio
import functools
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, example, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from starlette.concurrency import run_in_threadpool

from services.registry_api.access import first_keys
from services.registry_api.access import provider as provider_module
from services.registry_api.access.authentication import Access
from services.registry_api.access.provider_sign_in import ProviderSignIn, SignIn
from services.registry_api.access.tokens import JwtVerifier
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.protocol.callers import Caller
from services.shared.configuration.access import AccessSettings
from speaker_registry.errors import InvalidApiKey, Unavailable
from tests.http_server import http_server
from tests.integration.api.conftest import Start
from tests.integration.api.openid import AUDIENCE, OTHER_KEY, RSA_KEY, Provider, provided_by, public_key

EC_KEY = ec.generate_private_key(ec.SECP256R1())
CHARACTERS = st.characters()
"""Characters that include surrogates: JSON can express them, UTF-8 cannot."""


def signed(key: Any, claims: Any) -> str:
    """Return a token with any claims: `jwt.encode` refuses to write some that `jwt.decode` has to read."""
    return jwt.PyJWS().encode(json.dumps(claims).encode(), key, "RS256", headers={"kid": "one"})


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    with http_server(provider) as url:
        provider.issuer = f"{url}/realms/voices"
        yield provider
        provider.answers.set()


class OwnClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> OwnClock:
    return OwnClock()


@pytest.fixture
def tokens(provider: Provider, clock: OwnClock) -> JwtVerifier:
    return JwtVerifier(settings(provider), monotonic=clock)


def settings(provider: Provider, **more: Any) -> AccessSettings:
    return AccessSettings(oidc_issuer=provider.issuer, oidc_audience=AUDIENCE, **more)


def test_a_token_says_who_asks_and_for_what(provider: Provider, tokens: JwtVerifier):
    """A token names the caller and the scopes. Scopes that the registry does not know are ignored, and the
    subject itself is never logged.
    """
    caller = tokens.verify(provider.token(scope="openid engine voices:read", speaker_namespace="tenant"))
    assert caller.namespace == "tenant"
    assert caller.scopes == {"engine", "voices:read"}
    assert caller.id.startswith("jwt:")
    assert "robin" not in caller.id
    other = tokens.verify(provider.token(sub="wren@example.org"))
    assert other.id != caller.id
    assert (other.namespace, other.scopes) == ("default", frozenset())


def test_a_subject_has_limits_of_its_own_in_each_namespace(provider: Provider, tokens: JwtVerifier):
    """Requests in one namespace must not use up what the same person may do in another."""
    one, again, other = (
        tokens.verify(provider.token(speaker_namespace=namespace, scope=scope))
        for namespace, scope in (("a", "engine"), ("a", "admin"), ("b", "engine"))
    )
    assert one.id == other.id
    assert one.counted_id == again.counted_id
    assert one.counted_id != other.counted_id


@pytest.mark.parametrize(
    ("exp", "ends_at"),
    [
        (4_000_000_000, 4_000_000_030),
        (4_000_000_000.5, 4_000_000_030),
        ("4000000000", 4_000_000_030),
        (10**400, 2**53 + 30),
        (1e300, 2**53 + 30),
    ],
)
def test_a_caller_ends_with_the_token(provider: Provider, tokens: JwtVerifier, exp: Any, ends_at: float):
    """Half a minute later, because clocks may differ. An `exp` beyond all times never comes."""
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "robin", "exp": exp}
    assert tokens.verify(signed(RSA_KEY, claims)).ends_at == ends_at


def test_the_claims_may_have_other_names(provider: Provider, clock: OwnClock):
    """The claims may have other names, and scopes may be a list, because providers differ."""
    tokens = JwtVerifier(
        settings(provider, oidc_namespace_claim="tenant", oidc_scopes_claim="roles"), monotonic=clock
    )
    caller = tokens.verify(provider.token(tenant="a1", roles=["admin", "other"], scope="engine"))
    assert (caller.namespace, caller.scopes) == ("a1", {"admin"})


def test_an_issuer_may_end_with_a_slash(provider: Provider, clock: OwnClock):
    """The slash is part of the issuer's name, and is left out of the address where its keys are looked up."""
    provider.about = {"jwks_uri": f"{provider.issuer}/keys"}
    without = settings(provider)
    provider.issuer += "/"
    assert JwtVerifier(settings(provider), monotonic=clock).verify(provider.token())
    assert provider.asked == ["/realms/voices/.well-known/openid-configuration", "/realms/voices/keys"]
    with pytest.raises(Unavailable):  # a provider that calls itself otherwise is not trusted
        JwtVerifier(without, monotonic=clock).verify(provider.token(iss=without.oidc_issuer))


def test_elliptic_curves_are_taken_too(provider: Provider, tokens: JwtVerifier):
    provider.keys["curve"] = EC_KEY
    assert tokens.verify(provider.token(key=EC_KEY, kid="curve", algorithm="ES256", scope="engine")).scopes


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_a_key_goes_with_every_algorithm_of_its_kind(provider: Provider, tokens: JwtVerifier, algorithm: str):
    """A key verifies every algorithm of its kind unless it names one."""
    assert tokens.verify(provider.token(algorithm=algorithm, scope="engine")).scopes


def test_a_key_that_names_its_algorithm_goes_with_no_other(provider: Provider, tokens: JwtVerifier):
    provider.keys = {}
    provider.more_keys = [{**public_key("one", RSA_KEY), "alg": "PS256"}]
    assert tokens.verify(provider.token(algorithm="PS256"))
    with pytest.raises(InvalidApiKey, match="its algorithm is 'RS256', but its key is for PS256"):
        tokens.verify(provider.token(algorithm="RS256"))


def unnamed(key: Any) -> dict[str, Any]:
    return {name: value for name, value in public_key("", key).items() if name != "kid"}


@pytest.mark.parametrize("names_keys", [True, False])
def test_a_token_that_names_no_key_is_tried_with_those_of_its_algorithm(
    provider: Provider, tokens: JwtVerifier, names_keys: bool
):
    """Providers with a single key may leave its name out of tokens, and out of the key, too."""
    keys = {"curve": EC_KEY, "one": RSA_KEY, "two": OTHER_KEY}
    if names_keys:
        provider.keys = keys
    else:
        provider.keys, provider.more_keys = {}, [unnamed(key) for key in keys.values()]
    for key, algorithm in ((RSA_KEY, "RS256"), (OTHER_KEY, "PS512"), (EC_KEY, "ES256")):
        assert tokens.verify(provider.token(kid=None, key=key, algorithm=algorithm))
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.raises(InvalidApiKey, match="signature"):
        tokens.verify(provider.token(kid=None, key=stranger))
    with pytest.raises(
        InvalidApiKey, match="its algorithm is 'ES384', but its issuer has keys for ES256, RS256"
    ):
        tokens.verify(
            provider.token(kid=None, key=ec.generate_private_key(ec.SECP384R1()), algorithm="ES384")
        )


def test_a_token_that_names_no_key_is_tried_with_a_few_keys(provider: Provider, tokens: JwtVerifier):
    """Checking a signature takes long, and any client can send a token."""
    provider.keys = {}
    provider.more_keys = [unnamed(OTHER_KEY)] * 8 + [unnamed(RSA_KEY)]
    assert tokens.verify(provider.token(kid=None, key=OTHER_KEY))
    with pytest.raises(InvalidApiKey, match="signature"):
        tokens.verify(provider.token(kid=None, key=RSA_KEY))


def test_what_is_no_public_key_for_signatures_is_passed_over(provider: Provider, tokens: JwtVerifier):
    """Keys that are not public signing keys are ignored. A provider may list others, and a shared secret
    among them would let any reader of the list make tokens.
    """
    secret = "s" * 64
    provider.more_keys = [
        {"kty": "oct", "kid": "shared", "k": jwt.utils.base64url_encode(secret.encode()).decode()},
        {**public_key("for-encryption", OTHER_KEY), "use": "enc"},
        {"kty": "RSA", "kid": "damaged", "n": "!", "e": 3},
        {"kty": ["RSA"], "kid": "odd"},
        "none",
    ]
    assert tokens.verify(provider.token())
    for kid, key, algorithm, said in (
        ("shared", secret, "HS256", "its algorithm is 'HS256', which is not accepted"),
        ("for-encryption", OTHER_KEY, "RS256", "no key 'for-encryption'"),
    ):
        with pytest.raises(InvalidApiKey, match=said):
            tokens.verify(provider.token(key=key, kid=kid, algorithm=algorithm))


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": 1_000_000_000}, r"expired. Its exp was \d+ s ago .+ accepted: less than 30 s ago"),
        ({"exp": None}, "exp"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, r"its subject \(sub\) is empty"),
        ({"aud": "somebody-else"}, "udience"),
        ({"aud": None}, "aud"),
        ({"iss": "https://elsewhere.example"}, r"\(iss\) is 'https://elsewhere.example'; accepted: 'http://"),
        ({"nbf": 4_000_000_000}, r"not yet valid. Its nbf is \d+ s from now .+ accepted: up to 30 s"),
        ({"iat": 4_000_000_000}, r"not yet valid. Its iat is \d+ s from now .+ accepted: up to 30 s"),
        ({"speaker_namespace": "A B"}, "'A B'"),
        ({"speaker_namespace": ["x"]}, "speaker_namespace"),
        ({"key": OTHER_KEY}, "ignature"),
        ({"kid": "two"}, "no key 'two'"),
    ],
)
def test_a_token_that_is_not_for_us_is_refused(
    provider: Provider, tokens: JwtVerifier, claims: dict[str, Any], said: str
):
    """A token that is not for this registry is refused, and the message says what is wrong with it."""
    with pytest.raises(InvalidApiKey, match=said):
        tokens.verify(provider.token(**claims))


@pytest.mark.parametrize("scopes", [[["admin"]], [{"admin": 1}], [None, 1.5], [["admin"], "engine"]])
def test_scopes_that_are_no_words_are_passed_over(provider: Provider, tokens: JwtVerifier, scopes: list[Any]):
    """Scopes that are not words are ignored, like scopes that the registry does not know."""
    caller = tokens.verify(provider.token(scope=scopes))
    assert caller.scopes == {"engine"}.intersection(scope for scope in scopes if isinstance(scope, str))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
CLAIMS = ("iss", "aud", "sub", "exp", "nbf", "iat", "jti", "scope", "speaker_namespace")


@settings_of_hypothesis(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(odd=st.dictionaries(st.sampled_from(CLAIMS), JSON, max_size=3))
@example(odd={"exp": math.inf})
@example(odd={"exp": [1]})
@example(odd={"sub": "\ud800"})
def test_whatever_a_token_claims_is_understood_or_refused(
    provider: Provider, tokens: JwtVerifier, odd: dict[str, Any]
):
    """Every claim of a token is understood or refused, also when the provider was made to sign it, for
    example by a user who may choose their own attributes.
    """
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "robin", "exp": int(time.time()) + 600}
    with suppress(InvalidApiKey):
        tokens.verify(signed(RSA_KEY, claims | odd))


def test_claims_that_are_no_object_are_refused(provider: Provider, tokens: JwtVerifier):
    for claims in ([], "x", None, 1, functools.reduce(lambda inner, _: [inner], range(900), [])):
        with pytest.raises(InvalidApiKey):
            tokens.verify(signed(RSA_KEY, claims))


def test_a_signature_with_the_public_key_as_a_secret_is_none(provider: Provider, tokens: JwtVerifier):
    """A signature made with the public key as a secret is refused. The oldest attack on tokens uses the key
    that anyone may read as a shared one.
    """
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    good = provider.token(scope="admin")
    head = jwt.utils.base64url_encode(json.dumps({"alg": "HS256", "kid": "one", "typ": "JWT"}).encode())
    signed = head + b"." + good.split(".")[1].encode()
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    forged = (signed + b"." + jwt.utils.base64url_encode(algorithm.sign(signed, public))).decode()
    with pytest.raises(InvalidApiKey):
        tokens.verify(forged)


def test_an_unsigned_token_is_none(provider: Provider, tokens: JwtVerifier):
    body = provider.token(scope="admin").split(".")[1]
    head = jwt.utils.base64url_encode(json.dumps({"alg": "none", "kid": "one"}).encode()).decode()
    with pytest.raises(InvalidApiKey):
        tokens.verify(f"{head}.{body}.")


@pytest.mark.parametrize("head", [{}, {"alg": ["RS256"]}, {"alg": None}, {"alg": "RS256", "kid": ["one"]}])
def test_a_token_with_an_odd_head_is_refused(provider: Provider, tokens: JwtVerifier, head: dict[str, Any]):
    """A token with an invalid header is refused, because the sender chooses the header freely."""
    first = jwt.utils.base64url_encode(json.dumps({"kid": "one", **head}).encode()).decode()
    with pytest.raises(InvalidApiKey):
        tokens.verify(".".join([first, *provider.token().split(".")[1:]]))


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "." * 50, "é.é.é"])
def test_what_is_no_token_is_refused(tokens: JwtVerifier, text: str):
    """The message is for a person who mistyped a key at the sign-in page, and names no part of a token."""
    with pytest.raises(InvalidApiKey, match="mistyped or cut short"):
        tokens.verify(text)


def test_the_provider_is_asked_once(provider: Provider, tokens: JwtVerifier):
    """The provider is asked once, not for every request. For keys that it does not have, it is asked at most
    every ten seconds.
    """
    for _ in range(5):
        tokens.verify(provider.token())
    assert provider.times_asked == 1
    for _ in range(5):
        with pytest.raises(InvalidApiKey):
            tokens.verify(provider.token(kid="unknown"))
    assert provider.times_asked == 1


def test_a_new_key_of_the_provider_is_taken_soon(provider: Provider, tokens: JwtVerifier, clock: OwnClock):
    tokens.verify(provider.token())
    provider.keys["two"] = OTHER_KEY
    clock.seconds += 11
    assert tokens.verify(provider.token(key=OTHER_KEY, kid="two", scope="engine")).scopes == {"engine"}


@pytest.mark.parametrize("kid", ["one", None])
@pytest.mark.parametrize(("key", "algorithm"), [(OTHER_KEY, "RS256"), (EC_KEY, "ES256")])
def test_a_key_that_replaced_another_under_its_name_is_taken_soon(
    provider: Provider, tokens: JwtVerifier, clock: OwnClock, kid: str | None, key: Any, algorithm: str
):
    tokens.verify(provider.token())
    provider.keys["one"] = key
    new = provider.token(key=key, kid=kid, algorithm=algorithm)
    with pytest.raises(InvalidApiKey):
        tokens.verify(new)  # the last fetch is too recent for another one
    clock.seconds += 11
    assert tokens.verify(new)
    with pytest.raises(InvalidApiKey):
        tokens.verify(provider.token())
    assert provider.times_asked == 2


def test_forged_signatures_cause_one_fetch_every_ten_seconds(
    provider: Provider, tokens: JwtVerifier, clock: OwnClock
):
    tokens.verify(provider.token())
    forged = provider.token(key=OTHER_KEY)
    for _ in range(6):
        clock.seconds += 6
        for _ in range(3):
            with pytest.raises(InvalidApiKey, match="signature"):
                tokens.verify(forged)
    assert provider.times_asked == 4


def test_a_new_key_may_be_valid_until_the_provider_is_asked_for_it(
    provider: Provider, tokens: JwtVerifier, clock: OwnClock
):
    """A token of a new key is answered 503, not 401, if the last fetch is too recent for another one. Any
    client can cause that fetch with the name of a key that does not exist.
    """
    tokens.verify(provider.token())
    clock.seconds += 11
    with pytest.raises(InvalidApiKey, match="no key 'unknown'"):
        tokens.verify(provider.token(kid="unknown"))
    provider.keys["two"] = OTHER_KEY
    clock.seconds += 4
    new = provider.token(key=OTHER_KEY, kid="two")
    with pytest.raises(Unavailable) as caught:
        tokens.verify(new)
    assert caught.value.retry_after_seconds == 6
    clock.seconds += 7
    assert tokens.verify(new)


def test_a_name_that_a_fetch_did_not_bring_is_unknown_from_then_on(
    provider: Provider, tokens: JwtVerifier, clock: OwnClock
):
    """Each caller with a withdrawn key would otherwise wait for a fetch of its own. More names than a
    provider would add at once are made up, and count as wrong keys.
    """
    tokens.verify(provider.token())
    for number in range(16):
        clock.seconds += 0.1
        with pytest.raises(Unavailable, match="may have added its key just now"):
            tokens.verify(provider.token(kid=f"withdrawn{number}"))
    with pytest.raises(InvalidApiKey, match="no key 'made up'"):
        tokens.verify(provider.token(kid="made up"))
    clock.seconds += 11
    for number in range(16):
        clock.seconds += 0.1
        with pytest.raises(InvalidApiKey, match=f"no key 'withdrawn{number}'"):
            tokens.verify(provider.token(kid=f"withdrawn{number}"))
    assert provider.times_asked == 2


@pytest.mark.parametrize(
    "odd",
    [
        {"exp": 1_000_000_000},
        {"exp": None},
        {"nbf": 4_000_000_000},
        {"iat": 4_000_000_000},
        {"aud": "another-service"},
        {"iss": "https://elsewhere.example"},
        {"sub": None},
        {"sub": ""},
        {"jti": 5},
        {"key": "s" * 64, "algorithm": "HS256"},
    ],
)
def test_a_token_that_no_key_can_make_valid_is_refused_at_once(
    provider: Provider, tokens: JwtVerifier, clock: OwnClock, odd: dict[str, Any]
):
    """Such a token counts against its address, and causes no fetch."""
    tokens.verify(provider.token())
    for _ in range(3):
        clock.seconds += 6
        with pytest.raises(InvalidApiKey):
            tokens.verify(provider.token(kid="unknown", **odd))
    assert provider.times_asked == 1


@pytest.fixture
def access(provider: Provider, tokens: JwtVerifier) -> Access:
    return Access(
        cast(HeldKeys, object()), jwts=tokens, provider=ProviderSignIn(provided_by(provider), tokens)
    )


async def ask_at_once(access: Access, provider: Provider) -> list[Caller | str | BaseException]:
    """Send many tokens and begin many sign-ins at once, and let the provider answer half a second later."""
    provider.answers.clear()
    sent = [provider.token(sub=str(time.time_ns())) for _ in range(25)]
    tasks = [asyncio.create_task(access.authenticate(token, "203.0.113.7")) for token in sent]
    signing_in = [access.begin_sign_in(SignIn.new(""), "https://registry.example") for _ in range(25)]
    asked = asyncio.gather(*tasks, *signing_in, return_exceptions=True)
    await asyncio.sleep(0.5)
    await asyncio.wait_for(run_in_threadpool(time.time), 1)  # the threads are free
    provider.answers.set()
    return await asked


def test_whoever_arrives_together_waits_for_the_first_keys(
    provider: Provider, access: Access, clock: OwnClock
):
    """A process without keys, after its start or an hour without tokens, asks the provider once for all."""
    for times in (1, 2):
        answers = asyncio.run(ask_at_once(access, provider))
        assert [answer for answer in answers if isinstance(answer, BaseException)] == []
        assert provider.times_asked == times
        clock.seconds += 3700


def test_nobody_waits_long_for_the_first_keys(
    provider: Provider, access: Access, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_keys, "_WAIT_SECONDS", 0.1)
    answers = asyncio.run(ask_at_once(access, provider))
    assert [type(answer) for answer in answers] == [Unavailable] * 50
    assert len(provider.asked) <= 2


def test_a_text_that_no_key_makes_valid_waits_for_no_keys(provider: Provider, access: Access):
    """Any text would cause a fetch otherwise, and count as a wrong key only seconds later."""
    for sent in ("guess", provider.token(exp=1_000_000_000)):
        with pytest.raises(InvalidApiKey):
            asyncio.run(access.authenticate(sent, "203.0.113.7"))
    assert provider.asked == []


def test_a_key_that_the_provider_withdrew_is_not_taken_for_long(
    provider: Provider, tokens: JwtVerifier, clock: OwnClock
):
    tokens.verify(provider.token())
    provider.keys = {"two": OTHER_KEY}
    clock.seconds += 301
    with pytest.raises(InvalidApiKey, match="no key 'one'"):
        tokens.verify(provider.token())


@pytest.mark.parametrize(
    "about",
    [
        {"issuer": "https://elsewhere.example"},
        {"jwks_uri": "ftp://127.0.0.1/keys"},
        {"jwks_uri": None},
        {"keys": None},
        {"padding": "x" * 300_000},
    ],
)
def test_a_provider_that_is_not_the_one_that_was_meant_is_not_believed(
    provider: Provider, tokens: JwtVerifier, about: dict[str, Any]
):
    """A provider other than the configured one is not trusted, nor one whose answer is too long."""
    provider.about = about
    with pytest.raises(Unavailable):
        tokens.verify(provider.token())


def test_while_the_provider_is_away_tokens_wait(provider: Provider, tokens: JwtVerifier, clock: OwnClock):
    """A token is answered 503 while the provider is away, not 401, because it may be valid. The provider is
    asked every ten seconds, however many tokens arrive.
    """
    provider.away = True
    for _ in range(5):
        with pytest.raises(Unavailable) as caught:
            tokens.verify(provider.token())
        assert caught.value.retry_after_seconds == 10
    assert len(provider.asked) == 1
    provider.away = False
    clock.seconds += 8
    with pytest.raises(Unavailable) as caught:
        tokens.verify(provider.token())
    assert caught.value.retry_after_seconds == 2
    clock.seconds += 3
    assert tokens.verify(provider.token())


def test_while_the_provider_is_away_its_keys_are_good_for_an_hour(
    provider: Provider, tokens: JwtVerifier, clock: OwnClock
):
    """A provider's keys stay valid for an hour while it is away, so that its restart shuts out no caller. A
    key that it did not have before, it may have by now.
    """
    tokens.verify(provider.token())
    provider.away = True
    for _ in range(11):
        clock.seconds += 320
        assert tokens.verify(provider.token())
        with pytest.raises(Unavailable):
            tokens.verify(provider.token(kid="unknown"))
    clock.seconds += 320
    with pytest.raises(Unavailable):
        tokens.verify(provider.token())
    provider.away = False
    clock.seconds += 11
    assert tokens.verify(provider.token())


def test_while_the_provider_is_silent_one_thread_waits_for_it(
    provider: Provider, tokens: JwtVerifier, clock: OwnClock, monkeypatch: pytest.MonkeyPatch
):
    """One thread alone waits for a silent provider, because any client can send a token of an unknown key."""
    monkeypatch.setattr(provider_module, "_READ_TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(provider_module, "_ANSWER_SECONDS", 60.0)
    sent = {kid: provider.token(kid=kid) for kid in ("one", "unknown")}
    forged = provider.token(key=OTHER_KEY)
    tokens.verify(sent["one"])
    asked = len(provider.asked)
    clock.seconds += 301
    provider.answers.clear()

    def ask(kid: str) -> str:
        try:
            return tokens.verify(sent[kid]).namespace
        except Unavailable as error:
            return f"again after {error.retry_after_seconds}"

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(ask, "one")
        while len(provider.asked) == asked:
            assert not waits.done()
        for _ in range(5):
            clock.seconds += 11
            assert ask("one") == "default"
            assert ask("unknown") == "again after 1"
            with pytest.raises(InvalidApiKey, match="signature"):
                tokens.verify(forged)
        assert len(provider.asked) == asked + 1
        assert not waits.done()
        provider.answers.set()
        assert waits.result() == "default"
    clock.seconds += 11
    with pytest.raises(InvalidApiKey, match="no key 'unknown'"):
        tokens.verify(provider.token(kid="unknown"))
    assert provider.times_asked == 3


def test_a_provider_that_stays_silent_is_given_up(
    provider: Provider, tokens: JwtVerifier, clock: OwnClock, monkeypatch: pytest.MonkeyPatch
):
    """A provider that stays silent is given up, and the next token does not ask it again."""
    monkeypatch.setattr(provider_module, "_READ_TIMEOUT_SECONDS", 0.2)
    provider.answers.clear()
    for _ in range(3):
        with pytest.raises(Unavailable):
            tokens.verify(provider.token())
    assert len(provider.asked) == 1
    clock.seconds += 11
    with pytest.raises(Unavailable):
        tokens.verify(provider.token())
    assert len(provider.asked) == 2


def test_a_provider_that_never_comes_to_an_end_is_given_up(
    provider: Provider, tokens: JwtVerifier, monkeypatch: pytest.MonkeyPatch
):
    """A provider whose answer never ends is given up. Each piece of the answer arrives in
    time, the whole does not.
    """
    monkeypatch.setattr(provider_module, "_ANSWER_SECONDS", -1.0)
    with pytest.raises(Unavailable):
        tokens.verify(provider.token())


def test_tokens_open_routes_as_keys_do(provider: Provider, start: Start):
    """A token opens routes as a key does, by its scopes and namespace. Other routes are refused."""
    registry = start(access=settings(provider))
    get = registry.client.get

    def bearer(**claims: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {provider.token(**claims)}"}

    registry.upload("alice", headers=bearer(scope="voices:write", speaker_namespace="tenant"))
    reader = {"scope": "voices:read"}
    assert get("/v1/voices/alice", headers=bearer(**reader, speaker_namespace="tenant")).status_code == 200
    assert get("/v1/voices/alice", headers=bearer(**reader)).status_code == 404
    assert get("/v1/voices/alice", headers=bearer(scope="jobs:read")).status_code == 403
    expired = get("/v1/voices/alice", headers=bearer(**reader, exp=5))
    assert expired.status_code == 401
    assert "expired" in expired.json()["error"]["message"]
    assert get("/v1/voices").status_code == 401
    asked = {"name": "x", "scopes": ["engine"]}
    made = registry.client.post("/v1/keys", json=asked, headers=bearer(scope="admin"))
    assert made.status_code == 201
    assert made.json()["created_by"].startswith("jwt:")


@pytest.mark.parametrize(
    "scopes",
    [None, 5, 1.5, True, {}, {"voices:read": True}, [["voices:read"]], [{"admin": 1}], [None], []],
)
def test_a_claim_of_scopes_without_words_opens_nothing(provider: Provider, start: Start, scopes: Any):
    """A claim of scopes without words grants nothing: the token is valid, but allows nothing."""
    registry = start(access=settings(provider))
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "robin", "exp": int(time.time()) + 600}
    token = signed(RSA_KEY, {**claims, "scope": scopes})
    refused = registry.client.get("/v1/voices", headers={"Authorization": f"Bearer {token}"})
    assert refused.status_code == 403, refused.text


def test_words_count_among_scopes_that_are_none(provider: Provider, start: Start):
    """Words count among scopes that are otherwise invalid. The rest is ignored, whatever it holds."""
    registry = start(access=settings(provider))
    head = {
        "Authorization": f"Bearer {provider.token(scope=[['admin'], {'admin': 1}, None, 5, 'voices:read'])}"
    }
    assert registry.client.get("/v1/voices", headers=head).status_code == 200
    asked = {"name": "x", "scopes": ["engine"]}
    assert registry.client.post("/v1/keys", json=asked, headers=head).status_code == 403
