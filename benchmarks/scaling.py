"""Simulates 1 to 64 workers and 1 to 256 frontends: goodput, latency, fairness, and a worker that is lost.

Real fleet, links, admission and scheduler in virtual time; workers and frontends of `scaling_check`. Ten callers: one
sends as much as the nine others together. Loads are multiples of what all workers compute in full steps, or what all
frontends bear where that is less. Each core runs a load at a time. --size may be repeated: what is simulated replaces
those cases in the file.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from time import process_time

from benchmarks import result
from benchmarks.machine import describe
from benchmarks.rounds import case
from benchmarks.scale.constants import DEADLINE, TOKENS, measured_scale
from benchmarks.scale.simulation import Offered, simulate
from benchmarks.scale.virtual_time import in_virtual_time
from shared.telemetry import logs

SIDE = "simulated"
SIZES = {"1x1": 20.0, "1x4": 20.0, "4x1": 10.0, "4x16": 10.0, "16x16": 4.0, "16x64": 4.0, "64x64": 2.0, "64x256": 2.0}
"""Workers x frontends, and the seconds that are counted: fewer where a second has more requests."""
LOADS = (0.5, 0.9, 1.5, 3.0)
LOST = 0.7
"""The load at which a worker is lost."""
KEYS = ",".join(["greedy:9", *(f"caller{number}" for number in range(9))])
CAPACITY, OF_CAPACITY, COST = "capacity, requests/s", "goodput, % of capacity", "processor s"


def simulated(size: str, times: float, loses: bool) -> dict[str, float]:
    """Runs one load, in a process of its own."""
    logs.configure("json", "critical")  # thousands of links tell that they are attached
    workers, frontends = map(int, size.split("x"))
    scale = measured_scale(workers, frontends)
    capacity, began = scale.capacity(TOKENS), process_time()
    offered = Offered(
        rate=times * capacity,
        tokens=TOKENS,
        seconds=SIZES[size],
        warmup=DEADLINE,
        deadline=DEADLINE,
        keys=KEYS,
        loses=loses,
    )
    figures = in_virtual_time(simulate(scale, offered))
    derived = {CAPACITY: capacity, OF_CAPACITY: 100 * figures["goodput/s"] / capacity}
    return figures | derived | {COST: process_time() - began}


def loads_of(size: str, chosen: Sequence[float] | None) -> list[tuple[float, bool]]:
    """The loads of a size, and whether a worker is lost: all, or those that were chosen."""
    loads = [(times, False) for times in chosen or LOADS]
    return loads if chosen or size.startswith("1x") else [*loads, (LOST, True)]


def name_of(size: str, times: float, loses: bool) -> str:
    """The name of a case."""
    return f"{size.replace('x', ' x ')}, {times:g} times{', a worker is lost' * loses}"


def main(arguments: argparse.Namespace) -> int:
    """Runs the sizes that are asked for, as many at a time as there are cores, and writes them into the file."""
    cases = {row["case"]: row for row in result.read("scaling").get("cases", ())}
    order = [name_of(size, *load) for size in SIZES for load in loads_of(size, None)]
    # Large sizes first, since the last one to end has the machine alone.
    simulations = [
        (size, *load) for size in reversed(arguments.size or [*SIZES]) for load in loads_of(size, arguments.load)
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        running = {pool.submit(simulated, *load): name_of(*load) for load in simulations}
        for done in as_completed(running):
            name, figures = running[done], done.result()
            print(name, {key: result.number(value) for key, value in figures.items()}, file=sys.stderr, flush=True)
            cases[name] = case(name, {SIDE: [figures]}, SIDE, ())
            ordered = sorted(cases.values(), key=lambda row: order.index(row["case"]) if row["case"] in order else -1)
            says = (__doc__ or "").splitlines()[0]
            made = {"benchmark": "scaling", "says": says, "settings": {"threads": 1, "rounds": 1, "starts": 1}}
            made |= {"machine": describe(), "absent": {}, "peers": {}, "cases": ordered}
            result.write(made, arguments.out)
    return 0
