"""Simulates 1 to 64 workers and 1 to 256 frontends: goodput, latency, fairness, and a worker that is lost.

Real fleet, links, admission, queue and loop in virtual time; workers and frontends of `scaling_check`. Ten callers: one
sends as much as the nine others together. Loads are multiples of what all workers compute in full steps, or what all
frontends bear where that is less. --size may be repeated: what is simulated replaces those cases in the file.
"""

import argparse
import sys

from benchmarks import result
from benchmarks.machine import describe
from benchmarks.rounds import case
from benchmarks.scale.constants import DEADLINE, TOKENS, measured_scale
from benchmarks.scale.simulation import Offered, Scale, simulate
from benchmarks.scale.virtual_time import in_virtual_time
from shared.telemetry import logs

SIDE = "simulated"
SIZES = {"1x1": 20.0, "1x4": 20.0, "4x1": 10.0, "4x16": 10.0, "16x16": 4.0, "16x64": 4.0, "64x64": 2.0, "64x256": 2.0}
"""Workers x frontends, and the seconds that are counted: fewer where a second has more requests."""
LOADS = (0.5, 0.9, 1.5, 3.0)
LOST = 0.7
"""The load at which a worker is lost."""
KEYS = ",".join(["greedy:9", *(f"caller{number}" for number in range(9))])
CAPACITY, OF_CAPACITY = "capacity, requests/s", "goodput, % of capacity"


def simulated(scale: Scale, times: float, seconds: float, *, loses: bool) -> dict[str, float]:
    """Runs one load."""
    capacity = scale.capacity(TOKENS)
    offered = Offered(
        rate=times * capacity,
        tokens=TOKENS,
        seconds=seconds,
        warmup=DEADLINE,
        deadline=DEADLINE,
        keys=KEYS,
        loses=loses,
    )
    figures = in_virtual_time(simulate(scale, offered))
    return figures | {CAPACITY: capacity, OF_CAPACITY: 100 * figures["goodput/s"] / capacity}


def main(arguments: argparse.Namespace) -> int:
    """Runs the sizes that are asked for, and writes them into the file."""
    logs.configure("json", "critical")  # thousands of links tell that they are attached
    cases = {row["case"]: row for row in result.read("scaling").get("cases", ())}
    for size in arguments.size or SIZES:
        workers, frontends = map(int, size.split("x"))
        scale = measured_scale(workers, frontends)
        loads = [(times, False) for times in arguments.load or LOADS]
        loads += [(LOST, True)] if workers > 1 and not arguments.load else []
        for times, loses in loads:
            name = f"{workers} x {frontends}, {times:g} times{', a worker is lost' * loses}"
            figures = simulated(scale, times, SIZES[size], loses=loses)
            print(name, {key: result.number(value) for key, value in figures.items()}, file=sys.stderr, flush=True)
            cases[name] = case(name, {SIDE: [figures]}, SIDE, ())
            says = (__doc__ or "").splitlines()[0]
            made = {"benchmark": "scaling", "says": says, "settings": {"threads": 1, "rounds": 1, "starts": 1}}
            made |= {"machine": describe(), "absent": {}, "peers": {}, "cases": [*cases.values()]}
            result.write(made, arguments.out)
    return 0
