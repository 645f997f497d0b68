"""A part: workloads of one model through the engine, without services, as a list of rows."""

import argparse
import traceback
from collections.abc import Iterator, Sequence
from itertools import cycle

from benchmarks.accelerator import flops, options, patterns
from benchmarks.accelerator.patterns import Row
from benchmarks.accelerator.workloads import Workload, all_of
from gpu_worker.device.allocator import keep_freed_memory
from gpu_worker.device.placement import Placement
from gpu_worker.engine import ModelEngine
from gpu_worker.step.flight import Part
from gpu_worker.model.loading import load
from gpu_worker.rehearsal import rehearsal
from shared.jobs import Job


def ready(model: str, device: str) -> ModelEngine:
    """Loaded in bfloat16 and rehearsed, as the worker is before it serves."""
    engine = ModelEngine(load(f"random:{model}", Placement.choose(device, "bfloat16")))
    for job in rehearsal(engine.model):
        progress = engine.open(job)
        engine.step([Part(progress=progress, start=0, stop=len(progress.costs))])
        progress.result()
    return engine


def rows_of(workloads: Sequence[Workload], device: str, seed: int, seconds: float) -> Iterator[Row]:
    """Rows as they come; an error is a row too, and keeps nothing else from running."""
    try:
        engine = ready(workloads[0].model, device)
    except Exception as error:
        traceback.print_exc()
        yield from ({"workload": each.name, "error": options.told(error)} for each in workloads)
        return
    for workload in workloads:
        try:
            yield from _rows(workload, engine, seed, seconds)
        except Exception as error:
            traceback.print_exc()
            yield {"workload": workload.name, "error": options.told(error)}


def _rows(workload: Workload, engine: ModelEngine, seed: int, seconds: float) -> Iterator[Row]:
    model = engine.model
    jobs = workload.jobs(model.vocabulary_size, seed)
    known = {"workload": workload.name, "model": f"random:{workload.model}", "dtype": model.placement.dtype_name}
    cost = {"flops_per_token": round(flops.per_token(model, jobs))}
    for row in _measured(workload, engine, jobs, seconds):
        yield known | row | cost


def _measured(workload: Workload, engine: ModelEngine, jobs: Sequence[Job], seconds: float) -> Iterator[Row]:
    if workload.pattern == "burst":
        yield patterns.burst(engine, jobs)
    elif workload.pattern == "against encoder":
        yield patterns.against_encoder(engine, jobs[0])
    for count in workload.in_flight:
        yield patterns.closed(engine, cycle(jobs), count, seconds)


def main(arguments: argparse.Namespace) -> int:
    """1 where a workload failed."""
    keep_freed_memory()
    known, rows = all_of(arguments.scale, arguments.seed), list[Row]()
    chosen = [known[name] for name in arguments.workloads]
    for row in rows_of(chosen, arguments.device, arguments.seed, arguments.seconds):
        rows.append(row)
        options.write(arguments.out, rows)
        print(row, flush=True)
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    parser = options.parser("benchmarks.accelerator.engine", __doc__)
    parser.add_argument("--workloads", nargs="+", required=True, help="of the same model")
    raise SystemExit(main(parser.parse_args()))
