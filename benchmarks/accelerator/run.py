"""Published shapes on an accelerator, a part after the other: the device's limits, the engine, both services.

Weights are random, so torch, Triton, transformers and numpy are enough; the services' parts are skipped where their
packages are missing. JSON is written after each row. The run ends by itself before its limit: no part begins without
time for it, and one that hangs ends the process. Whether outputs are right is tested by tests/gpu.
"""

import argparse
import faulthandler
import gc
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch

from benchmarks import our_kernels, ours
from benchmarks.accelerator.engine import WORKLOADS, run_model
from benchmarks.accelerator.report import Report, Row
from benchmarks.machine import describe
from benchmarks.workloads import Scale, Workload, named

Part = tuple[str, Callable[[], object]]
LOADS = ("colbert-rerank", "short", "token-embed", "instruct-burst")
"""Workloads of the services in order of importance; the last one comes all at once."""
FRONTENDS, WARMUP = {"tiny": 1, "small": 1, "full": 4}, 1.0
NEEDED = ("benchmarks.servers", "frontend_service.__main__", "gpu_worker.__main__")
LEAST, OF_SERVICES = 25.0, 40.0
"""Least seconds that a part needs, and that a part with services needs.

Services load their model in processes of their own, which a run that is ended from outside leaves behind.
"""


def name_of(device: torch.device) -> str:
    """Names a device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a processor"


def limits(device: torch.device) -> Row:
    """Measures the device's rates, as fields of `roofline.Device`."""
    rates = {"flops": our_kernels.flops, "memory": our_kernels.bandwidth, "link": our_kernels.link}
    return {"name": name_of(device), **{field: round(rate(device)) for field, rate in rates.items()}}


def services(workload: Workload, device: torch.device, scale: Scale, seconds: float) -> Row:
    """Measures a worker on the device and its frontends: rates, p50 and p99, and CPU a request. Skipped where a package
    is missing."""
    try:
        for module in NEEDED:
            import_module(module)
    except ImportError as missing:
        return {"workload": workload.name, "skipped": str(missing)}
    from benchmarks.servers import generated, running_stack, server_of

    clients = workload.in_flight[0]
    options: dict[str, Any] = {"clients": clients, "seconds": seconds, "warmup": WARMUP}
    options["requests"] = clients if workload.name == "instruct-burst" else 0
    with (
        ours.written(workload.model, str(device)) as folder,
        running_stack(folder, frontends=FRONTENDS[scale], worker={"device": str(device)}) as running,
    ):
        measured = generated(server_of(running), workload, **options)
    figures = {figure: float(f"{value:.4g}") for figure, value in measured.items()}
    return {"workload": workload.name, "model": workload.model, "in flight": clients, **figures}


def parts(arguments: argparse.Namespace, report: Report) -> Iterator[Part]:
    """Yields the parts in order: the limits first, then the headlines of each kind, since time may run out."""
    device, workloads = torch.device(arguments.device), named(arguments.scale)

    def served(name: str) -> Part:
        run = partial(services, workloads[name], device, arguments.scale, arguments.seconds)
        return f"services, {name}", lambda: report.add_row("services", run())

    of_model: dict[str, list[Workload]] = {}
    for name in WORKLOADS:
        of_model.setdefault(workloads[name].model, []).append(workloads[name])
    run = partial(run_model, device=arguments.device, seconds=arguments.seconds, report=report)
    engines: list[Part] = [(f"engine, {model}", partial(run, group)) for model, group in of_model.items()]
    yield "limits", lambda: report.limits.update(limits(device))
    yield from (*engines[:3], *map(served, LOADS[:2]), *engines[3:], *map(served, LOADS[2:]))


def main(arguments: argparse.Namespace) -> int:
    """Runs the parts that are asked for; gives 1 where one failed, 2 where none has such a name or the earlier result
    is of another device."""
    machine = describe() | ({"commit": arguments.commit} if arguments.commit else {})
    settings = {name: getattr(arguments, name) for name in ("device", "scale", "seconds", "limit")}
    head = {"benchmark": "accelerator", "settings": settings, "machine": machine}
    report = Report(head, arguments.out, add=arguments.add)
    earlier, device = report.limits.get("name"), name_of(torch.device(arguments.device))
    if earlier not in (None, device):
        print(f"--add: {arguments.out} is of {earlier}, this is {device}")
        return 2
    chosen = [(name, part) for name, part in parts(arguments, report) if any(word in name for word in arguments.only)]
    if not chosen:
        print(f"--only: no part's name has {' or '.join(arguments.only)}")
        return 2
    faulthandler.dump_traceback_later(arguments.limit, exit=True)  # a part that hangs, or takes too long
    until, failed = time.monotonic() + arguments.limit, False
    for name, part in chosen:
        start, row = time.monotonic(), {"commit": machine["commit"]}
        if until - start < (OF_SERVICES if name.startswith("services") else LEAST):
            row["skipped"] = "the time is up"
        else:
            report.begin_part(name)
            try:
                part()
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                failed = True
                row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        gc.collect()
        torch.cuda.empty_cache()  # for the services, whose worker is another process
        report.end_part(name, row | {"seconds": round(time.monotonic() - start, 1)})
    faulthandler.cancel_dump_traceback_later()
    return int(failed)
