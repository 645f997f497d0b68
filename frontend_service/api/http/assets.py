"""The playground at / and its files. They lie in a package, and ask no other host for anything."""

from collections.abc import Iterator
from importlib.resources import files

from frontend_service.api.http.errors import TEI
from frontend_service.api.http.reply import HTML, HttpReply
from frontend_service.api.http.route import Endpoint, HttpCall, Route

PACKAGE = "frontend_service.api.http.playground"
PAGE = "index.html"
TYPES = {".html": HTML, ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
TYPES |= {".svg": "image/svg+xml"}
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = (
    ("content-security-policy", POLICY),
    ("cache-control", "no-cache"),  # after an update no old file is mixed with new ones
    ("referrer-policy", "no-referrer"),
)


def routes() -> Iterator[Route]:
    """The page, and each file that it is made of. All are open: it is the page that asks for a key."""
    for file in files(PACKAGE).iterdir():
        kind = TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == PAGE else f"/playground/{file.name}"
            serve = _gives(HttpReply(body=file.read_bytes(), content_type=kind, headers=HEADERS))
            yield Route(
                method="GET",
                path=path,
                dialect=TEI,
                summary="The playground, for a browser",
                content_type=kind,
                is_open=True,
                serve=serve,
            )


def _gives(reply: HttpReply) -> Endpoint:
    async def serve(_: HttpCall) -> HttpReply:
        return reply

    return serve
