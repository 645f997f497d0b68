"""What pages of others make a browser send to the HTTP API, and what they get: nothing, unless a setting lets them."""

import re

import pytest
from asgi import HttpApi, Worker
from wire import Response, post, serving, told

from frontend_service.settings import FrontendSettings
from shared.errors import Unauthenticated
from shared.security import is_loopback
from shared.server.calls import Calls

CLOSE = b"Connection: close"
PAGE = b"Origin: https://app.example"
HERE, ALL = "127.0.0.1:8080", "0.0.0.0:8080"


def get(path: bytes, host: bytes = b"localhost", *lines: bytes, method: bytes = b"GET") -> bytes:
    """A request, the last of its connection."""
    return b"\r\n".join((b"%b %b HTTP/1.1" % (method, path), b"Host: " + host, CLOSE, *lines, b"", b""))


async def one(api: HttpApi, asked: bytes) -> Response:
    """The one response to it."""
    async with serving(api) as address:
        (response,) = await told(address, asked)
        return response


@pytest.mark.parametrize(
    "kind",
    [(), (b"Content-Type: text/plain",), (b"Content-Type: ",), (b"Content-Type: application/x-www-form-urlencoded",)],
)
@pytest.mark.parametrize("path", [b"/v1/embeddings", b"/v2/embed", b"/embed", b"/"])
async def test_a_body_says_that_it_is_json(path: bytes, kind: tuple[bytes, ...]) -> None:
    """What browsers send without asking first says something else, or nothing; the refusal says what to add."""
    asked = post(CLOSE, *kind, path=path).replace(b"Content-Type: application/json\r\n", b"")
    response = await one(HttpApi(Worker()), asked)
    assert response.status == 415
    assert b"-H 'content-type: application/json'" in response.body


@pytest.mark.parametrize("kind", [b"application/json; charset=utf-8", b"Application/JSON", b"application/ld+json"])
async def test_kinds_of_json_are_json(kind: bytes) -> None:
    asked = post(CLOSE).replace(b"application/json", kind)
    assert (await one(HttpApi(Worker()), asked)).status == 200


@pytest.mark.parametrize(
    ("listen", "host", "status"),
    [
        (HERE, b"localhost", 200),
        (HERE, b"LocalHost:8080", 200),
        (HERE, b"localhost.:1", 200),
        (HERE, b"127.0.0.1:1", 200),
        (HERE, b"127.8.9.10", 200),
        (HERE, b"[::1]:8080", 200),
        (HERE, b"", 200),
        (HERE, b"evil.example", 421),
        (HERE, b"evil.example:8080", 421),
        (HERE, b"localhost.evil.example", 421),
        (HERE, b"127.0.0.1.evil.example", 421),
        (HERE, b"0.0.0.0:8080", 421),
        (HERE, b"192.168.0.1", 421),
        (HERE, b"[fe80::1]", 421),
        ("localhost:0", b"evil.example", 421),
        ("[::1]:0", b"evil.example", 421),
        (ALL, b"evil.example", 200),
    ],
)
async def test_names_that_are_not_ours_are_refused(listen: str, host: bytes, status: int) -> None:
    """On a port that only this machine reaches, a name can be only one that a web page has pointed here."""
    response = await one(HttpApi(Worker(), loopback=is_loopback(listen)), get(b"/v1/models", host))
    assert response.status == status
    if status == 421:
        message = response.json["error"]["message"]
        assert re.fullmatch(
            r"host is '.+', and this port answers for this machine alone: localhost, 127.0.0.1", message
        )


@pytest.mark.parametrize("path", [b"/", b"/docs"])
async def test_pages_load_nothing_from_other_hosts(path: bytes) -> None:
    response = await one(HttpApi(Worker()), get(path))
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("path", [b"/", b"/docs", b"/openapi.json", b"/health", b"/none", b"/v1/models", b"/metrics"])
async def test_browsers_guess_no_types(path: bytes) -> None:
    assert (await one(HttpApi(Worker()), get(path))).headers["x-content-type-options"] == "nosniff"


def unknown(_: object) -> object:
    raise Unauthenticated("no such key")


def allows(*origins: str, strict: bool = False) -> HttpApi:
    """Pages of these may ask; `strict`: nobody has a key."""
    calls = Calls(timeout=600, identify=unknown) if strict else None  # type: ignore[arg-type]
    return HttpApi(Worker(), calls, origins=origins)


ASKS_FIRST = (b"Access-Control-Request-Method: POST", b"Access-Control-Request-Headers: authorization,x-stainless-os")


@pytest.mark.parametrize("path", [b"/v1/embeddings", b"/none", b"/health"])
@pytest.mark.parametrize("allowed", ["https://app.example", "*"])
async def test_a_preflight_needs_no_key(path: bytes, allowed: str) -> None:
    """It tells what the page may send: our headers, and those that it asks for."""
    api = allows(allowed, "http://other.example", strict=True) if allowed != "*" else allows("*", strict=True)
    response = await one(api, get(path, b"localhost", PAGE, *ASKS_FIRST, method=b"OPTIONS"))
    assert response.status == 200
    told_back = {name.removeprefix("access-control-"): value for name, value in response.headers.items()}
    assert told_back["allow-origin"] == allowed
    assert told_back["allow-methods"] == "GET, HEAD, POST"
    assert told_back["allow-headers"] == "authorization,x-stainless-os"
    assert "Origin" in response.headers["vary"]
    assert "allow-credentials" not in told_back


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (post(CLOSE, PAGE), 200),
        (post(CLOSE, PAGE, body=b"{"), 400),
        (post(CLOSE, PAGE, b"Content-Encoding: gzip"), 415),
        (get(b"/none", b"localhost", PAGE), 404),
        (get(b"/v1/embeddings", b"localhost", PAGE), 405),
        (get(b"/v1/models", b"localhost", PAGE, b"Host: twice"), 400),
    ],
)
async def test_replies_and_errors_are_shown_to_a_page_that_may_ask(asked: bytes, status: int) -> None:
    response = await one(allows("https://app.example"), asked)
    assert (response.status, response.headers["access-control-allow-origin"]) == (status, "https://app.example")
    assert response.headers["vary"] == "Origin"
    assert "retry-after" in response.headers["access-control-expose-headers"]


async def test_a_page_learns_that_its_key_is_wrong() -> None:
    response = await one(allows("https://app.example", strict=True), post(CLOSE, PAGE))
    assert (response.status, response.headers["access-control-allow-origin"]) == (401, "https://app.example")


@pytest.mark.parametrize(
    "origin",
    [
        b"Origin: https://evil.example",
        b"Origin: https://app.example.evil.example",
        b"Origin: http://app.example",
        b"Origin: https://app.example:8443",
        b"Origin: null",
        b"X-Origin: https://app.example",
    ],
)
async def test_other_pages_are_told_nothing(origin: bytes) -> None:
    api = allows("https://app.example")
    first = await one(api, get(b"/v1/embeddings", b"localhost", origin, *ASKS_FIRST, method=b"OPTIONS"))
    second = await one(api, post(CLOSE, origin))
    assert (first.status, second.status) == (405 if origin.startswith(b"X-") else 400, 200)
    for response in (first, second):
        assert "access-control-allow-origin" not in response.headers
        assert "Origin" in response.headers["vary"]


async def test_without_the_setting_no_page_of_others_may_ask() -> None:
    response = await one(HttpApi(Worker()), get(b"/embed", b"localhost", PAGE, *ASKS_FIRST, method=b"OPTIONS"))
    assert (response.status, response.headers["allow"]) == (405, "POST")
    assert not [name for name in response.headers if name.startswith(("access-control", "vary"))]


def test_settings_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """As flags, or in one with commas; a port that browsers leave out is left out."""
    monkeypatch.setenv("SELVAGE_FRONTEND_HTTP_CORS_ORIGIN", "https://App.example:443,http://a:8000, tauri://localhost")
    assert FrontendSettings.read([]).http_cors_origin == ("https://app.example", "http://a:8000", "tauri://localhost")
    assert FrontendSettings.read(["--http-cors-origin", "*"]).http_cors_origin == ("*",)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--http-cors-origin", "https://app.example/"),
        ("--http-cors-origin", "app.example"),
        ("--http-cors-origin", "https://*.example"),
        ("--http-cors-origin", "null"),
    ],
)
def test_settings_that_no_browser_could_send_are_refused(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        FrontendSettings.read([flag, value])
    assert flag in capsys.readouterr().err
