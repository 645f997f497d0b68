"""What came of all calls of a run, as figures. Nothing here is measured; it is counted and divided."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from benchmarks.load.loops import Call

OK, REFUSED, EXPIRED = "OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"
NAMES = {REFUSED: "refused", EXPIRED: "expired"}


class LoadFailed(RuntimeError):
    """A run that cannot be counted; the message says why."""


def counted(calls: Sequence[Call], start: float, stop: float, *, is_open: bool) -> tuple[list[Call], float]:
    """The calls of the window, and the seconds that rates are divided by.

    An open loop goes by when a call was due. A closed loop goes by the answer, and its span reaches from the last
    answer before the window to the last in it: clients fall into step with the server's batches, and a window's edge
    would gain or lose a whole one.
    """
    if is_open:
        return [each for each in calls if start <= each.due < stop], stop - start
    inside = [each for each in calls if start <= each.ended < stop]
    before = max((each.ended for each in calls if each.ended < start), default=start)
    return inside, max((each.ended for each in inside), default=stop) - before


def figures(calls: Sequence[Call], seconds: float, tokens: Sequence[int], deadline: float = 0.0) -> dict[str, float]:
    """Rates and latencies. `tokens`: of each request; `deadline`: seconds that an answer may take to be of use, or 0.

    Latencies are of answers with OK: refusals answer fast and would flatter them, so they have their own.
    """
    good = [each for each in calls if each.status == OK]
    found = {
        "requests/s": len(good) / seconds,
        "tokens/s": sum(tokens[each.request] for each in good) / seconds,
    } | _latency("", good)
    if deadline:
        in_time = sum(each.ended - each.due <= deadline for each in good)
        found["goodput/s"] = in_time / seconds
    for name, those in _failures(calls).items():
        found |= {f"{name}/s": len(those) / seconds} | (_latency(f"{name} ", those) if name == "refused" else {})
    return found


def by_sender(
    calls: Sequence[Call], seconds: float, tokens: Sequence[int], deadline: float
) -> dict[str, dict[str, float]]:
    """The same of each sender, where there are several."""
    ordered = sorted(calls, key=lambda each: each.sender.name)
    groups = {name: list(those) for name, those in groupby(ordered, key=lambda each: each.sender.name)}
    return (
        {name: figures(those, seconds, tokens, deadline) for name, those in groups.items()} if len(groups) > 1 else {}
    )


def _failures(calls: Sequence[Call]) -> Mapping[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for each in calls:
        if each.status != OK:
            found.setdefault(NAMES.get(each.status, "failed"), []).append(each)
    return found


def _latency(prefix: str, calls: Sequence[Call]) -> dict[str, float]:
    if not calls:
        return {}
    middle, late = np.quantile([(each.ended - each.due) * 1e3 for each in calls], (0.5, 0.99))
    return {f"{prefix}p50 ms": float(middle), f"{prefix}p99 ms": float(late)}
