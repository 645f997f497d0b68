"""The playground at / and its files, which lie in a package and load nothing from other hosts."""

from collections.abc import Iterator
from importlib.resources import files

from frontend_service.api.http.errors import TEI
from frontend_service.api.http.reply import HTML, HttpReply
from frontend_service.api.http.route import Endpoint, HttpCall, Route

PACKAGE = "frontend_service.api.http.playground"
PAGE = "index.html"
CONTENT_TYPES = {".html": HTML, ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
CONTENT_TYPES |= {".svg": "image/svg+xml"}
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = (
    ("content-security-policy", POLICY),
    ("cache-control", "no-cache"),  # so that after an update no old file is mixed with new ones
    ("referrer-policy", "no-referrer"),
)


def routes() -> Iterator[Route]:
    """Routes of the page and of its files. All are open: the page itself asks for an API key."""
    for file in files(PACKAGE).iterdir():
        content_type = CONTENT_TYPES.get("." + file.name.rpartition(".")[2])
        if content_type is not None:
            path = "/" if file.name == PAGE else f"/playground/{file.name}"
            reply = HttpReply(body=file.read_bytes(), content_type=content_type, headers=HEADERS)
            yield Route(
                method="GET",
                path=path,
                dialect=TEI,
                summary="The playground, for a browser",
                content_type=content_type,
                is_open=True,
                endpoint=_constant_endpoint(reply),
            )


def _constant_endpoint(reply: HttpReply) -> Endpoint:
    """Makes an endpoint that always gives the same reply."""

    async def endpoint(_: HttpCall) -> HttpReply:
        return reply

    return endpoint
