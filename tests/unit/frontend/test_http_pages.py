"""What pages of others make a browser send to the HTTP API, and what they get: nothing, unless a setting lets them."""

import re

import pytest
from asgi import HttpApi, Worker, api_of
from wire import Response, exchange, post, refuses_strangers, serving

from frontend_service.settings import FrontendSettings
from shared.security import is_loopback

CLOSE = b"Connection: close"
PAGE = b"Origin: https://app.example"
EMBED = b"/v1/embeddings"


def get(path: bytes, host: bytes = b"localhost", *lines: bytes, method: bytes = b"GET") -> bytes:
    """A request, the last of its connection."""
    return b"\r\n".join((b"%b %b HTTP/1.1" % (method, path), b"Host: " + host, CLOSE, *lines, b"", b""))


async def ask(api: HttpApi, *requests: bytes) -> list[Response]:
    """A response to each, on a connection of its own."""
    async with serving(api) as address:
        return [(await exchange(address, request))[0] for request in requests]


async def test_a_body_says_that_it_is_json() -> None:
    """What browsers send without asking first says something else, or nothing; the refusal says what to add."""
    requests = [
        post(CLOSE, *kind, path=path).replace(b"Content-Type: application/json\r\n", b"")
        for path in (b"/v1/embeddings", b"/v2/embed", b"/embed", b"/")
        for kind in ((), (b"Content-Type: text/plain",), (b"Content-Type: ",))
    ]
    for response in await ask(api_of(), *requests):
        assert response.status == 415
        assert b"-H 'content-type: application/json'" in response.body


async def test_kinds_of_json_are_json() -> None:
    kinds = (b"application/json; charset=utf-8", b"Application/JSON", b"application/ld+json")
    responses = await ask(api_of(), *(post(CLOSE).replace(b"application/json", kind) for kind in kinds))
    assert [response.status for response in responses] == [200] * 3


OURS = (b"localhost", b"LocalHost:8080", b"localhost.:1", b"127.0.0.1:1", b"127.8.9.10", b"[::1]:8080", b"")
OTHERS = (
    *(b"evil.example", b"evil.example:8080", b"localhost.evil.example", b"127.0.0.1.evil.example"),
    *(b"0.0.0.0:8080", b"192.168.0.1", b"[fe80::1]"),
)


@pytest.mark.parametrize(
    ("listen", "ours", "others"),
    [
        ("127.0.0.1:8080", OURS, OTHERS),
        ("localhost:0", (), OTHERS[:1]),
        ("[::1]:0", (), OTHERS[:1]),
        ("0.0.0.0:8080", OTHERS[:1], ()),
    ],
)
async def test_names_that_are_not_ours_are_refused(
    listen: str, ours: tuple[bytes, ...], others: tuple[bytes, ...]
) -> None:
    """On a port that only this machine reaches, a name can be only one that a web page has pointed here."""
    api = HttpApi(Worker(), loopback=is_loopback(listen))
    wanted = "host is '.+', and this port answers for this machine alone: localhost, 127.0.0.1"
    responses = await ask(api, *(get(b"/v1/models", host) for host in (*ours, *others)))
    for host, response in zip((*ours, *others), responses, strict=True):
        assert response.status == (200 if host in ours else 421), host
        assert host in ours or re.fullmatch(wanted, response.json["error"]["message"])


async def test_pages_load_nothing_from_other_hosts_and_browsers_guess_no_types() -> None:
    paths = (b"/", b"/docs", b"/openapi.json", b"/health", b"/none", b"/v1/models", b"/metrics")
    for path, response in zip(paths, await ask(api_of(), *map(get, paths)), strict=True):
        assert response.headers["x-content-type-options"] == "nosniff"
        if path in (b"/", b"/docs"):
            policy = response.headers["content-security-policy"]
            assert policy.startswith("default-src 'self';")
            assert "frame-ancestors 'none'" in policy


def allows(*origins: str, strict: bool = False) -> HttpApi:
    """Pages of these may ask; `strict`: nobody has a key."""
    return HttpApi(Worker(), refuses_strangers() if strict else None, origins=origins)


ASKS_FIRST = (b"Access-Control-Request-Method: POST", b"Access-Control-Request-Headers: authorization,x-stainless-os")


@pytest.mark.parametrize("allowed", ["https://app.example", "*"])
async def test_a_preflight_needs_no_key(allowed: str) -> None:
    """It tells what the page may send: our headers, and those that it asks for."""
    api = allows(allowed, "http://other.example", strict=True) if allowed != "*" else allows("*", strict=True)
    paths = (b"/v1/embeddings", b"/none", b"/health")
    requests = (get(path, b"localhost", PAGE, *ASKS_FIRST, method=b"OPTIONS") for path in paths)
    for response in await ask(api, *requests):
        assert response.status == 200
        assert response.headers["access-control-allow-origin"] == allowed
        assert response.headers["access-control-allow-methods"] == "GET, HEAD, POST"
        assert response.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        assert "Origin" in response.headers["vary"]
        assert "access-control-allow-credentials" not in response.headers


async def test_replies_and_errors_are_shown_to_a_page_that_may_ask() -> None:
    """That its key is wrong, too."""
    key = b"Authorization: Bearer right"
    requests = {
        post(CLOSE, PAGE, key): 200,
        post(CLOSE, PAGE): 401,
        post(CLOSE, PAGE, key, body=b"{"): 400,
        post(CLOSE, PAGE, key, b"Content-Encoding: gzip"): 415,
        get(b"/none", b"localhost", PAGE): 404,
        get(b"/v1/embeddings", b"localhost", PAGE): 405,
        get(b"/v1/models", b"localhost", PAGE, b"Host: twice"): 400,
    }
    responses = await ask(allows("https://app.example", strict=True), *requests)
    assert [response.status for response in responses] == [*requests.values()]
    for response in responses:
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        assert response.headers["vary"] == "Origin"
        assert "retry-after" in response.headers["access-control-expose-headers"]


async def test_other_pages_are_told_nothing() -> None:
    origins = (
        b"Origin: https://evil.example",
        b"Origin: https://app.example.evil.example",
        b"Origin: http://app.example",
        b"Origin: https://app.example:8443",
        b"Origin: null",
        b"X-Origin: https://app.example",
    )
    api = allows("https://app.example")
    firsts = await ask(api, *(get(EMBED, b"localhost", origin, *ASKS_FIRST, method=b"OPTIONS") for origin in origins))
    seconds = await ask(api, *(post(CLOSE, origin) for origin in origins))
    assert [response.status for response in firsts] == [400] * 5 + [405]
    assert [response.status for response in seconds] == [200] * 6
    for response in (*firsts, *seconds):
        assert "access-control-allow-origin" not in response.headers
        assert "Origin" in response.headers["vary"]


async def test_without_the_setting_no_page_of_others_may_ask() -> None:
    (response,) = await ask(api_of(), get(b"/embed", b"localhost", PAGE, *ASKS_FIRST, method=b"OPTIONS"))
    assert (response.status, response.headers["allow"]) == (405, "POST")
    assert not [name for name in response.headers if name.startswith(("access-control", "vary"))]


def test_settings_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """As flags, or in one with commas; a port that browsers leave out is left out."""
    monkeypatch.setenv("SELVAGE_FRONTEND_HTTP_CORS_ORIGIN", "https://App.example:443,http://a:8000, tauri://localhost")
    assert FrontendSettings.read([]).http_cors_origin == ("https://app.example", "http://a:8000", "tauri://localhost")
    assert FrontendSettings.read(["--http-cors-origin", "*"]).http_cors_origin == ("*",)


@pytest.mark.parametrize("value", ["https://app.example/", "app.example", "https://*.example", "null"])
def test_settings_that_no_browser_could_send_are_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        FrontendSettings.read(["--http-cors-origin", value])
    assert "--http-cors-origin" in capsys.readouterr().err
