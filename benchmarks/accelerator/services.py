"""A part: one worker on the device, four frontends, short texts; and who holds the device. A list with one row.

Skipped where a package of the services is missing: a machine with an accelerator may have PyTorch and little else.
"""

import argparse
import signal
import subprocess
import sys
import traceback
from dataclasses import replace

from benchmarks.accelerator import contexts, options
from benchmarks.accelerator.patterns import Row
from benchmarks.sizes import Scale
from harness.running import run

FRONTENDS = 4
NAME = "short through the services"
PROBE = "import frontend_service.__main__, benchmarks.services, gpu_worker.__main__"
ABSENT = "ModuleNotFoundError"


def missing() -> str:
    """Why the services cannot even be imported here, in a line; or nothing."""
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    return "" if probe.returncode == 0 else probe.stderr.strip().splitlines()[-1]


async def measure(device: str, scale: Scale, seed: int, seconds: float) -> Row:
    """A closed loop over all frontends, then a look at the processes. Nothing here may hold the device itself."""
    from benchmarks import workloads  # imported when it runs: see `missing`
    from benchmarks.load.generator import generate
    from benchmarks.load.plan import Plan
    from benchmarks.load.target import GrpcAddress
    from harness.stack import stack

    workload, before = workloads.build("short", scale=scale, seed=seed), contexts.holders()
    flags = {**workload.worker, "device": device}
    async with stack(workload.model, frontends=FRONTENDS, worker=flags) as pair:
        frontends = [member.pid for member in pair.frontends]
        plan = Plan(
            address=GrpcAddress(servers=tuple(each.address for each in pair.frontends), method=workload.method),
            requests=workload.prepared(),
            pattern=replace(workload.pattern, seconds=seconds),
            warmup=min(1.0, seconds),
            seed=seed,
        )
        watch = {"worker": pair.worker.pid} | {f"frontend {number}": pid for number, pid in enumerate(frontends)}
        outcome = await generate(plan, watch=watch, title=NAME)
        found = contexts.verdict(before, contexts.holders(), pair.worker.pid, frontends)
    row = {"workload": NAME, "model": workload.model, "frontends": FRONTENDS, "in_flight": workload.pattern.clients}
    complaint = contexts.complaint(found)
    return row | outcome.figures() | {"contexts": found} | ({"error": complaint} if complaint else {})


def main(arguments: argparse.Namespace) -> int:
    """1 where it failed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, members stop by it
    absent = missing()
    if absent:
        row = {"workload": NAME, ("skipped" if absent.startswith(ABSENT) else "error"): absent}
    else:
        try:
            row = run(measure(arguments.device, arguments.scale, arguments.seed, arguments.seconds))
        except Exception as error:
            traceback.print_exc()
            row = {"workload": NAME, "error": options.told(error)}
    options.write(arguments.out, [row])
    print(row)
    return int("error" in row)


if __name__ == "__main__":
    raise SystemExit(main(options.parser("benchmarks.accelerator.services", __doc__).parse_args()))
