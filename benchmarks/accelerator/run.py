"""Published shapes on an accelerator, a part after the other: limits, the engine, attention, MaxSim, both services.

Weights are random, so torch, Triton, transformers and numpy are enough; the services' parts are skipped where their
packages are missing. JSON is written after each row, profiles beside it. The run ends by itself before its limit: no
part begins without time for it, and one that hangs ends the process. That outputs are right is for tests/gpu to say.
"""

import argparse
import faulthandler
import gc
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Any

import torch

from benchmarks import products
from benchmarks.accelerator.engine import WORKLOADS, run_model
from benchmarks.accelerator.kernels import DTYPES, HEADS, attention, maxsim
from benchmarks.accelerator.report import Report, Row
from benchmarks.accelerator.services import LOADS, services
from benchmarks.machine import describe
from benchmarks.workloads import Workload, named

Part = tuple[str, Callable[[], object]]
LEAST, OF_SERVICES = 40.0, 90.0
"""Seconds that a part needs to get anywhere. Services load their model in processes of their own, which a run that is
ended from outside leaves behind."""


def limits(device: torch.device) -> Row:
    """What the device can do, as `roofline.Device` has it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a processor"
    rates = {"flops": products.flops, "memory": products.bandwidth, "link": products.link}
    return {"name": name, **{each: round(rate(device)) for each, rate in rates.items()}}


def parts(options: argparse.Namespace, report: Report) -> Iterator[Part]:
    """What is run, in order: what takes seconds, then the headlines of each kind, since time may run out."""
    device, scale, limit = torch.device(options.device), options.scale, report.limits

    def tell(section: str, make: Callable[..., list[Row]], *of: Any) -> None:
        for row in make(device, scale, *of, limit):
            report.tell(section, row)

    def engine(model: str, workloads: list[Workload]) -> Part:
        return f"engine, {model}", partial(run_model, workloads, options.device, options.seconds, report)

    groups = groupby((named(scale)[name] for name in WORKLOADS), key=lambda each: each.model)
    engines = [engine(model, list(group)) for model, group in groups]
    served: list[Part] = [
        (f"services, {name}", partial(tell, "services", services, name, options.seconds)) for name in LOADS
    ]
    yield "limits", lambda: limit.update(limits(device))
    yield from ((f"attention, heads of {head}", partial(tell, "attention", attention, head)) for head in HEADS)
    yield from ((f"maxsim, {dtype}", partial(tell, "maxsim", maxsim, dtype)) for dtype in DTYPES)
    yield from (*engines[:3], *served[:2], *engines[3:], *served[2:])


def main(options: argparse.Namespace) -> int:
    """1 where a part failed."""
    faulthandler.dump_traceback_later(options.limit, exit=True)  # a part that hangs, or takes too long
    until = time.monotonic() + options.limit
    machine = describe() | ({"commit": options.commit} if options.commit else {})
    settings = {name: getattr(options, name) for name in ("device", "scale", "seconds", "limit")}
    report = Report({"benchmark": "accelerator", "settings": settings, "machine": machine}, options.out)
    for name, part in parts(options, report):
        start, told = time.monotonic(), {"part": name}
        if until - start < (OF_SERVICES if name.startswith("services") else LEAST):
            told["skipped"] = "the time is up"
        else:
            try:
                part()
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                told["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        gc.collect()
        torch.cuda.empty_cache()  # for the services, whose worker is another process
        report.tell("parts", told | {"seconds": round(time.monotonic() - start, 1)})
    faulthandler.cancel_dump_traceback_later()
    return int(any("error" in each for each in report.sections["parts"]))
