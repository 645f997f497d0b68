"""Loads that are compared: they take turns in every round, and what a request costs is learnt once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.load.generator import LoadFailed, generate
from benchmarks.load.outcome import Outcome
from benchmarks.load.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A name among those it is compared with, what is sent, and the servers' processes by name."""

    name: str
    plan: Plan
    watch: Mapping[str, int] = field(default_factory=dict)


async def measured(cases: Sequence[Case], rounds: int, title: str) -> dict[str, list[Outcome]]:
    """All cases in turn, `rounds` times: outcomes of each by its name, in the order of the rounds.

    Raises LoadFailed where a case has no answer in any round.
    """
    known: dict[bytes, int] = {}
    outcomes: dict[str, list[Outcome]] = {case.name: [] for case in cases}
    for turn in range(rounds):
        for case in cases:
            plan = _knowing(case.plan, known)
            name = f"{title}: {case.name}, round {turn + 1} of {rounds}"
            outcomes[case.name].append(await generate(plan, watch=case.watch, title=name))
            known |= {plan.requests[index].body: count for index, count in outcomes[case.name][-1].tokens.items()}
    for name, runs in outcomes.items():
        if not any(run.requests for run in runs):
            raise LoadFailed(f"{title}: {name}: no answer in its time; give more --seconds")
    return outcomes


def best(outcomes: Sequence[Outcome]) -> Outcome:
    """The round with the most requests/s."""
    return max(outcomes, key=lambda each: each.requests_per_second)


def _knowing(plan: Plan, known: Mapping[bytes, int]) -> Plan:
    if any(each.body not in known for each in plan.requests):
        return plan
    return replace(plan, requests=tuple(replace(each, tokens=known[each.body]) for each in plan.requests), learn=False)
