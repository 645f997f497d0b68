"""What came of all calls of a run, as figures. Nothing here is measured; it is counted and divided."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.load.loops import REFUSED, Call

OK, EXPIRED = "OK", "DEADLINE_EXCEEDED"
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
    ended: dict[str, list[Call]] = {OK: []}
    for each in calls:
        ended.setdefault(each.status if each.status == OK else NAMES.get(each.status, "failed"), []).append(each)
    good = ended.pop(OK)
    served = sum(tokens[each.request] for each in good)
    found = {"requests/s": len(good) / seconds, "tokens/s": served / seconds} | _latency("", good)
    if deadline:
        found["goodput/s"] = sum(each.ended - each.due <= deadline for each in good) / seconds
    for name, those in ended.items():
        found |= {f"{name}/s": len(those) / seconds} | (_latency("refused ", those) if name == "refused" else {})
    return found


def by_sender(calls: Sequence[Call], *figured: Any) -> dict[str, dict[str, float]]:
    """The same of each sender, where there are several; takes what `figures` does."""
    senders = sorted({each.sender for each in calls})
    groups = {" ".join(f"{name} {value}" for name, value in each): each for each in senders}
    told = {name: [call for call in calls if call.sender == sender] for name, sender in groups.items()}
    return {name: figures(own, *figured) for name, own in told.items()} if len(told) > 1 else {}


def _latency(prefix: str, calls: Sequence[Call]) -> dict[str, float]:
    if not calls:
        return {}
    middle, late = np.quantile([(each.ended - each.due) * 1e3 for each in calls], (0.5, 0.99))
    return {f"{prefix}p50 ms": float(middle), f"{prefix}p99 ms": float(late)}
