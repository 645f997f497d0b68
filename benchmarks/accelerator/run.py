"""Published shapes on an accelerator, a part after the other: limits, the engine, attention, MaxSim, both services.

Weights are random, so torch, Triton, transformers and numpy are enough; the services' parts are skipped where their
packages are missing. JSON is written after each row, profiles beside it. The run ends by itself before its limit: no
part begins without time for it, and one that hangs ends the process. Whether outputs are right is tested by tests/gpu.
"""

import argparse
import faulthandler
import gc
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import our_kernels, ours
from benchmarks.accelerator.engine import WORKLOADS, run_model
from benchmarks.accelerator.report import Report, Row
from benchmarks.machine import describe
from benchmarks.workloads import QUERY, WIDTH, Scale, Workload, named

HEADS, ACROSS = (64, 128, 256), 1024
"""Numbers of a head, and of all heads together."""
LENGTHS, TOKENS = {True: (2048, 4096, 8192), False: (64, 128)}, {True: 16_384, False: 128}
"""Lengths of texts, and tokens of all texts, for attention; by whether the scale is full."""
ONE, MANY = ((1, 1000, 300, 25), (1, 5000, 300, 105), (1, 5000, 1024, 360)), ((32, 50, 180, 25), (32, 100, 256, 60))
SHAPES = (*ONE, *MANY, (2, 20, 60, 0))
"""Shapes of MaxSim: queries, documents of each, tokens of a document, target in us on an H200. The last is a trial."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROTATED = {"cuda": 1 << 28, "cpu": 1 << 16}
"""Bytes of the inputs that are used in rotation: several times a cache."""
Part = tuple[str, Callable[[], object]]
LOADS = ("colbert-rerank", "short", "token-embed", "instruct-burst")
"""Workloads of the services in order of importance; the last one comes all at once."""
FRONTENDS, WARMUP = {"tiny": 1, "small": 1, "full": 4}, 1.0
NEEDED = ("benchmarks.services", "frontend_service.__main__", "gpu_worker.__main__")
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


def attention(device: torch.device, scale: Scale, head: int, limits: Row) -> list[Row]:
    """Measures attention alone, whose limit is its two products: a row for each length of texts."""
    rows, place = [], ours.Placement.choose(str(device))
    for length in LENGTHS[scale == "full"]:
        lengths = [length] * (TOKENS[scale == "full"] // length)
        with torch.inference_mode():
            took = our_kernels.seconds(our_kernels.attention(ACROSS // head, head, lengths, place), device)
        limit = 4.0 * len(lengths) * length**2 * ACROSS / limits["flops"]
        row = {"head": head, "texts": f"{len(lengths)} x {length:,}", "us": round(1e6 * took, 1)}
        rows.append(row | {"% of products": round(100 * limit / took, 1)})
    return rows


def maxsim(device: torch.device, scale: Scale, dtype: torch.dtype, limits: Row) -> list[Row]:
    """Measures MaxSim alone, a row for each shape: every query against documents of its own, in one call.

    Inputs are in no cache. The limit is reading all rows of the documents once. The kernel is timed by graph replay,
    the whole call as Python makes it.
    """
    return [_row(shape, dtype, device, limits["memory"]) for shape in (SHAPES if scale == "full" else SHAPES[-1:])]


def _row(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, speed: float) -> Row:
    queries, documents, tokens, goal = shape
    lengths = [tokens] * (queries * documents)
    size = sum(lengths) * WIDTH * dtype.itemsize
    counts = (queries * QUERY, sum(lengths))
    all_inputs = [
        [F.normalize(torch.randn(count, WIDTH, device=device), dim=1).to(dtype) for count in counts]
        for _ in range(max(2, ceil(ROTATED[device.type] / size)))
    ]
    scoring = partial(our_kernels.maxsim, lengths=lengths, queries=queries)
    kernel = our_kernels.replayed([scoring(*inputs, kernel_alone=True) for inputs in all_inputs], device)
    call = our_kernels.seconds(scoring(*all_inputs[0]), device)
    figures = {"kernel us": 1e6 * kernel, "call us": 1e6 * call, "% of limit": 100 * size / speed / kernel}
    name = f"{queries} x {documents:,} x {tokens:,}, {str(dtype).removeprefix('torch.')}"
    return {"shape": name, **{figure: round(value, 1) for figure, value in figures.items()}, "goal us": goal}


def services(device: torch.device, scale: Scale, name: str, seconds: float, limits: Row) -> list[Row]:
    """Measures a worker on the device and its frontends: rates, p50 and p99, and CPU a request. Skipped where a package
    is missing."""
    try:
        for module in NEEDED:
            import_module(module)
    except ImportError as missing:
        return [{"workload": name, "skipped": str(missing)}]
    from benchmarks.services import Server, generated, running_stack

    workload, worker = named(scale)[name], {"device": str(device)}
    clients = workload.in_flight[0]
    options: dict[str, Any] = {"scale": scale, "clients": clients, "seconds": seconds, "warmup": WARMUP}
    options["requests"] = clients if name == "instruct-burst" else 0
    with (
        ours.written(workload.model, str(device)) as folder,
        running_stack(folder, frontends=FRONTENDS[scale], worker=worker) as pair,
    ):
        address = ",".join(frontend.address for frontend in pair.frontends)
        server = Server(address=address, pids={"worker": pair.worker.pid, "frontend": pair.frontends[0].pid})
        measured = generated(server, name, **options)
    figures = {figure: float(f"{value:.4g}") for figure, value in measured.items()}
    return [{"workload": name, "model": workload.model, "in flight": clients, **figures}]


def parts(arguments: argparse.Namespace, report: Report) -> Iterator[Part]:
    """Yields the parts in order: those of seconds first, then the headlines of each kind, since time may run out."""
    device, scale, limit = torch.device(arguments.device), arguments.scale, report.limits

    def report_rows(section: str, make: Callable[..., list[Row]], *details: Any) -> None:
        for row in make(device, scale, *details, limit):
            report.add_row(section, row)

    def engine(model: str, workloads: list[Workload]) -> Part:
        return f"engine, {model}", partial(run, workloads, arguments.device, arguments.seconds, report)

    run = partial(run_model, as_written=not arguments.served)
    of_model: dict[str, list[Workload]] = {}
    for name in WORKLOADS:
        of_model.setdefault(named(scale)[name].model, []).append(named(scale)[name])
    engines = [engine(model, workloads) for model, workloads in of_model.items()]
    served: list[Part] = [
        (f"services, {name}", partial(report_rows, "services", services, name, arguments.seconds)) for name in LOADS
    ]
    yield "limits", lambda: limit.update(limits(device))
    yield from ((f"attention, heads of {head}", partial(report_rows, "attention", attention, head)) for head in HEADS)
    yield from ((f"maxsim, {dtype}", partial(report_rows, "maxsim", maxsim, dtype)) for dtype in DTYPES)
    yield from (*engines[:3], *served[:2], *engines[3:], *served[2:])


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
