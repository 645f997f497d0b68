"""Web pages of other sites that browsers let call this API: fetch.spec.whatwg.org, CORS protocol."""

import re
from dataclasses import dataclass

from frontend_service.api.http.arrival import Headers
from frontend_service.api.http.head import ANY, TIMEOUT
from frontend_service.api.http.reply import HttpReply
from shared.caller import AUTHORIZATION, KEY, PRIORITY, REQUEST_ID, TRACEPARENT, TRACESTATE

ORIGIN, METHOD, HEADERS = "origin", "access-control-request-method", "access-control-request-headers"
ALLOWED_HEADERS = (AUTHORIZATION, "content-type", REQUEST_ID, TIMEOUT, KEY, PRIORITY, TRACEPARENT, TRACESTATE)
"""Headers that a page may send; it may send any others that it asks for too, since they have no meaning here."""
EXPOSED_HEADERS = f"{REQUEST_ID}, retry-after, retry-after-ms, server-timing"
"""Headers of a reply that a page may read."""
TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")
MAX_HEADERS = 64
"""Most headers that a page may ask for by name."""
VARY = (("vary", "Origin"),)

Added = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cors:
    """The origins whose pages may call the API: SCHEME://HOST[:PORT] each, or * for all; none: only pages of ours."""

    origins: frozenset[str] = frozenset()

    def added(self, headers: Headers) -> Added:
        """Headers to add to every reply, errors included, to a request with these headers."""
        if not self.origins:
            return ()
        allowed = self._allowed(headers)
        vary = () if ANY in self.origins else VARY
        if allowed is None:
            return vary
        return (("access-control-allow-origin", allowed), ("access-control-expose-headers", EXPOSED_HEADERS), *vary)

    def preflight(self, method: str, headers: Headers) -> HttpReply | None:
        """The reply to a CORS preflight, for which no API key is needed; None for any other request."""
        names = dict(headers)
        if method != "OPTIONS" or METHOD not in names or self._allowed(headers) is None:
            return None
        requested = [name.strip().lower() for name in names.get(HEADERS, "").split(",")][:MAX_HEADERS]
        extra = [name for name in requested if name not in ALLOWED_HEADERS and TOKEN.fullmatch(name)]
        return HttpReply(
            status=204,
            headers=(
                ("access-control-allow-methods", "GET, HEAD, POST"),
                ("access-control-allow-headers", ", ".join((*ALLOWED_HEADERS, *extra))),
                ("access-control-max-age", "600"),
            ),
        )

    def _allowed(self, headers: Headers) -> str | None:
        """The allowed origin that the reply names, or None where the page may not call."""
        origins = [value for name, value in headers if name == ORIGIN]
        if len(origins) != 1:
            return None
        if ANY in self.origins:
            return ANY
        return origins[0] if origins[0].lower() in self.origins else None
