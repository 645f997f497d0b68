"""Where a call stands in a distributed trace: the headers of W3C Trace Context, version 00. Standard library only.

Knows no spans: without OpenTelemetry the services pass on what came, and their logs name the trace.
"""

import re
from contextvars import ContextVar

CURRENT: ContextVar[str] = ContextVar("traceparent", default="")
"""Of the call that is being served: what is asked of others on its behalf carries it. Empty: no trace."""
LONGEST_STATE = 512
"""Letters of a tracestate that is passed on; a longer one is left out, as the specification allows."""
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e\t]*")


def valid(traceparent: str) -> str:
    """As version 00 writes it; empty where it is none, which is no error: such a header is ignored.

    Of a later version the fields of this one count, and what follows them does not.
    """
    match = _FORM.fullmatch(traceparent.strip())
    if match is None:
        return ""
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None) or not (trace.strip("0") and span.strip("0")):
        return ""
    return f"00-{trace}-{span}-{flags}"


def valid_state(tracestate: str) -> str:
    """The same of what vendors add to a trace."""
    return tracestate if len(tracestate) <= LONGEST_STATE and _STATE.fullmatch(tracestate) else ""


def trace_id(traceparent: str) -> str:
    """For logs, of a valid one; empty for no trace."""
    return traceparent[3:35]
