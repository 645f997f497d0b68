"""Figures of a run from its calls, by counting and dividing."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.load.loops import REFUSED, Call

OK, EXPIRED = "OK", "DEADLINE_EXCEEDED"
NAMES = {REFUSED: "refused", EXPIRED: "expired"}


class LoadFailed(RuntimeError):
    """Raised for a run that cannot be counted; the message says why."""


def counted(calls: Sequence[Call], start: float, stop: float, *, is_open: bool) -> tuple[list[Call], float]:
    """Selects the calls of the window, and gives the seconds that rates are divided by.

    An open loop goes by when a call was due. A closed loop goes by the answer, and its span reaches from the last
    answer before the window to the last in it: clients fall into step with the server's batches, and a window's edge
    would gain or lose a whole one.
    """
    if is_open:
        return [call for call in calls if start <= call.due < stop], stop - start
    inside = [call for call in calls if start <= call.ended < stop]
    before = max((call.ended for call in calls if call.ended < start), default=start)
    return inside, max((call.ended for call in inside), default=stop) - before


def under_way(calls: Sequence[Call], start: float, stop: float) -> tuple[list[Call], float]:
    """Selects the calls that were under way in the window, and gives the seconds from the first to the last of them.

    For latencies: `counted` would leave out the slowest calls, which begin before a window or end behind it.
    """
    inside = [call for call in calls if call.due < stop and call.ended >= start]
    first, last = min((call.due for call in inside), default=start), max((call.ended for call in inside), default=stop)
    return inside, last - first


def figures(calls: Sequence[Call], seconds: float, tokens: Sequence[int], deadline: float = 0.0) -> dict[str, float]:
    """Computes rates and latencies.

    `tokens`: those of each request; `deadline`: seconds that an answer may take to be of use, or 0.

    Latencies are of answers with OK: refusals answer fast and would flatter them, so they have their own.
    """
    ended: dict[str, list[Call]] = {OK: []}
    for call in calls:
        ended.setdefault(call.status if call.status == OK else NAMES.get(call.status, "failed"), []).append(call)
    good = ended.pop(OK)
    served = sum(tokens[call.request] for call in good)
    rates = {"requests/s": len(good) / seconds, "tokens/s": served / seconds} | _latency("", good)
    if deadline:
        rates["goodput/s"] = sum(call.ended - call.due <= deadline for call in good) / seconds
    for name, those in ended.items():
        rates |= {f"{name}/s": len(those) / seconds} | (_latency("refused ", those) if name == "refused" else {})
    return rates


def by_sender(calls: Sequence[Call], *arguments: Any) -> dict[str, dict[str, float]]:
    """Computes the figures of each sender, where there are several; takes the arguments of `figures`."""
    senders = sorted({call.sender for call in calls})
    groups = {" ".join(f"{name} {value}" for name, value in sender): sender for sender in senders}
    calls_of = {name: [call for call in calls if call.sender == sender] for name, sender in groups.items()}
    return {name: figures(own_calls, *arguments) for name, own_calls in calls_of.items()} if len(calls_of) > 1 else {}


def _latency(prefix: str, calls: Sequence[Call]) -> dict[str, float]:
    if not calls:
        return {}
    milliseconds = [(call.ended - call.due) * 1e3 for call in calls]
    quantiles = zip(("p50", "p95", "p99"), np.quantile(milliseconds, (0.5, 0.95, 0.99)), strict=True)
    return {f"{prefix}mean ms": float(np.mean(milliseconds))} | {
        f"{prefix}{name} ms": float(value) for name, value in quantiles
    }
