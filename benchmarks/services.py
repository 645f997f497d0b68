"""Both services under the named workloads: `python -m benchmarks.services`.

One worker with as many frontends as a workload wants, driven by the load generator. Every workload is measured in a
closed loop as it is defined; `lognormal` and `mixed` also in an open loop at a share of what the closed loop reached.
Configurations that are compared (numbers of clients, one frontend against four, short texts with and without long
ones) take turns in every round. The generator's own ceiling is measured beside each workload.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from benchmarks import tables, workloads
from benchmarks.load.case import Case, best, measured
from benchmarks.load.ceiling import ceiling_of
from benchmarks.load.pattern import Open
from benchmarks.load.plan import Plan
from benchmarks.load.summary import summary
from benchmarks.load.target import GrpcAddress
from benchmarks.machine import describe
from benchmarks.sizes import Scale
from benchmarks.workloads import Workload
from harness.running import run
from harness.stack import Stack, stack
from selvage.v1 import model_pb2
from selvage.v1.model_pb2_grpc import ModelServiceStub

RESULT = Path(__file__).parent / "results" / "services-cpu.json"
SHARE = 0.7
"""Of the closed loop's requests/s, for open loops: busy, but with a queue that ends."""
OPEN = ("lognormal", "mixed")
QUICK = ("short", "mixed", "colbert-rerank")
MANY_FRONTENDS = 4


def closed_cases(workload: Workload, pair: Stack, seconds: float, seed: int) -> list[Case]:
    """The workload as it is defined, or each step of its sweep with one frontend and with all."""
    plan = _plan(workload, pair, seconds, seed)
    if not workload.client_counts:
        return [Case(name="closed", plan=plan, watch=_processes(pair, 1))]
    return [
        Case(
            name=f"{count} client{'s' * (count > 1)}, {frontends} frontend{'s' * (frontends > 1)}",
            plan=replace(
                plan,
                pattern=replace(workload.pattern, clients=count, seconds=seconds),
                address=_to(plan, pair, frontends),
            ),
            watch=_processes(pair, frontends),
        )
        for count in workload.client_counts
        for frontends in (1, MANY_FRONTENDS)
    ]


def open_cases(workload: Workload, pair: Stack, seconds: float, seed: int, reached: float) -> list[Case]:
    """Poisson arrivals at a share of what was reached; of mixed lengths also the short texts alone, as often."""
    if workload.name not in OPEN or not reached:
        return []
    rate = reached * SHARE
    plan = replace(_plan(workload, pair, seconds, seed), pattern=Open(rate=rate, seconds=seconds))
    cases = [Case(name="open", plan=plan, watch=_processes(pair, 1))]
    if workload.name == "mixed":
        alone = workload.only("short")
        rate *= len(alone.requests) / len(workload.requests)
        pattern = Open(rate=rate, seconds=seconds)
        plan = replace(plan, requests=alone.prepared(), pattern=pattern)
        cases.append(Case(name="open, short alone", plan=plan, watch=_processes(pair, 1)))
    return cases


def _plan(workload: Workload, pair: Stack, seconds: float, seed: int) -> Plan:
    timed = workload.pattern.requests is None
    return Plan(
        address=GrpcAddress(servers=(pair.frontends[0].address,), method=workload.method),
        requests=workload.prepared(),
        pattern=replace(workload.pattern, seconds=seconds) if timed else workload.pattern,
        warmup=min(1.0, seconds) * timed,  # a counted load has had its warm-up when every request has been learnt
        seed=seed,
    )


def _to(plan: Plan, pair: Stack, frontends: int) -> GrpcAddress:
    assert isinstance(plan.address, GrpcAddress)
    return replace(plan.address, servers=tuple(member.address for member in pair.frontends[:frontends]))


def _processes(pair: Stack, frontends: int) -> dict[str, int]:
    """The worker's and those frontends' process ids, by name."""
    members = pair.frontends[:frontends]
    return {"worker": pair.worker.pid} | {f"frontend {number}": each.pid for number, each in enumerate(members)}


async def run_workload(workload: Workload, pair: Stack, seconds: float, rounds: int, seed: int) -> dict[str, Any]:
    """All cases of one workload, and the generator's ceiling for the fastest of them."""
    cases = closed_cases(workload, pair, seconds, seed)
    outcomes = await measured(cases, rounds, workload.name)
    reached = median(each.requests_per_second for each in outcomes[cases[0].name])
    further = open_cases(workload, pair, seconds, seed, reached)
    outcomes |= await measured(further, rounds, workload.name)
    fastest = max(cases, key=lambda case: best(outcomes[case.name]).requests_per_second)
    most = best(outcomes[fastest.name])
    ceiling = await ceiling_of(fastest.plan, most, seconds=min(seconds, 3.0), title=f"{workload.name}: null server")
    return {
        "measures": workload.measures,
        "model": workload.model,
        "dtype": await _dtype(pair),
        "cases": {
            case.name: summary(outcomes[case.name])
            | {"pattern": repr(case.plan.pattern), "frontends": len(case.plan.address.servers)}
            for case in [*cases, *further]
        },
        "null_server": ceiling.figures() | {"beside": fastest.name},
    }


async def _dtype(pair: Stack) -> str:
    models: Any = ModelServiceStub(pair.channel)
    return str((await models.GetModel(model_pb2.GetModelRequest())).card.dtype)


async def measure(names: Sequence[str], *, scale: Scale, seconds: float, rounds: int, seed: int) -> dict[str, Any]:
    """Workloads of the same model share a pair; the pair has four frontends where a sweep wants them."""
    chosen = [workloads.build(name, scale=scale, seed=seed) for name in names]
    results: dict[str, Any] = {}
    for model, sweep in dict.fromkeys((each.model, bool(each.client_counts)) for each in chosen):
        mates = [each for each in chosen if (each.model, bool(each.client_counts)) == (model, sweep)]
        async with stack(model, frontends=MANY_FRONTENDS if sweep else 1, worker=mates[0].worker) as pair:
            for workload in mates:
                results[workload.name] = await run_workload(workload, pair, seconds, rounds, seed)
    return {
        "benchmark": "services-cpu" if scale == "small" else "services",
        "scale": scale,
        "seed": seed,
        "rounds": rounds,
        "seconds": seconds,
        "open_share": SHARE,
        "machine": describe(),
        "workloads": {name: results[name] for name in names},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.services", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workloads", default="", help="names with commas; default: all")
    add("--scale", choices=("small", "full"), default="small", help="for two cores, or an accelerator (%(default)s)")
    add("--seconds", type=float, default=8.0, help="of each case in each round (default: %(default)s)")
    add("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    add("--seed", type=int, default=1, help="of texts and arrivals (default: %(default)s)")
    add("--quick", action="store_true", help=f"{', '.join(QUICK)} only, two seconds, one round")
    add("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    given = parser.parse_args()
    asked = tuple(given.workloads.split(",")) if given.workloads else QUICK if given.quick else workloads.names()
    unknown = set(asked) - set(workloads.names())
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(workloads.names())}")
    length = (2.0, 1) if given.quick else (given.seconds, given.rounds)
    outcome = run(measure(asked, scale=given.scale, seconds=length[0], rounds=length[1], seed=given.seed))
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(outcome, indent=1) + "\n")
    Console().print(Markdown(tables.services(outcome)))
