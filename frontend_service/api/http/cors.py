"""Pages of other sites that browsers let ask here: fetch.spec.whatwg.org, CORS protocol."""

import re
from dataclasses import dataclass

from frontend_service.api.http.arrival import Headers
from frontend_service.api.http.head import ANY, TIMEOUT
from frontend_service.api.http.reply import HttpReply
from shared.caller import AUTHORIZATION, KEY, PRIORITY, REQUEST_ID, TRACEPARENT, TRACESTATE

ORIGIN, METHOD, HEADERS = "origin", "access-control-request-method", "access-control-request-headers"
SENT = (AUTHORIZATION, "content-type", REQUEST_ID, TIMEOUT, KEY, PRIORITY, TRACEPARENT, TRACESTATE)
"""Headers that a page may send; others that it asks for it may send too, since they mean nothing here."""
SHOWN = f"{REQUEST_ID}, retry-after, retry-after-ms, server-timing"
"""Headers of a reply that a page may read."""
TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")
MOST = 64
"""Headers that a page may ask for by name."""
VARY = (("vary", "Origin"),)

Added = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cors:
    """The `origins` that may: SCHEME://HOST[:PORT] each, or * for all; without any, browsers keep to their own site."""

    origins: frozenset[str] = frozenset()

    def added(self, headers: Headers) -> Added:
        """Headers of every reply to a request with such `headers`, errors too."""
        if not self.origins:
            return ()
        allowed = self._allowed(headers)
        vary = () if ANY in self.origins else VARY
        if allowed is None:
            return vary
        return (("access-control-allow-origin", allowed), ("access-control-expose-headers", SHOWN), *vary)

    def preflight(self, method: str, headers: Headers) -> HttpReply | None:
        """The reply to a browser that asks what a page may send, for which no key is needed; None: this is no such
        question.
        """
        names = dict(headers)
        if method != "OPTIONS" or METHOD not in names or self._allowed(headers) is None:
            return None
        wanted = [name.strip().lower() for name in names.get(HEADERS, "").split(",")][:MOST]
        others = [name for name in wanted if name not in SENT and TOKEN.fullmatch(name)]
        return HttpReply(
            status=204,
            headers=(
                ("access-control-allow-methods", "GET, HEAD, POST"),
                ("access-control-allow-headers", ", ".join((*SENT, *others))),
                ("access-control-max-age", "600"),
            ),
        )

    def _allowed(self, headers: Headers) -> str | None:
        """The origin that the browser is told."""
        origins = [value for name, value in headers if name == ORIGIN]
        if len(origins) != 1:
            return None
        if ANY in self.origins:
            return ANY
        return origins[0] if origins[0].lower() in self.origins else None
