"""The published tables beside vLLM on the same cores: the same requests over HTTP, row by row.

A row names a model, its requests and its clients (`--row`; all by default). Both servers read the same files. All sides
of a row are loaded at once and asked in turns, case by case, so that they meet the same machine: that wants 10 GB for
each of vLLM's settings and 3 for ours. The clients run in a process of their own on the same cores. Before anything is
timed, the answers are compared with the model's own code. Products alone bound both servers: tokens a second if nothing
but the model's linear layers took time. Results are kept a file a row, in benchmarks/results/published. `--quick` cuts
models to two layers: it shows that a row works.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import torch

from benchmarks import our_kernels, roofline
from benchmarks.benchmark import ALONE, OURS, Figures, Options, Turn
from benchmarks.load.generator import Load
from benchmarks.peers.process import HUGE_PAGES, VENVS, free_port, program_of
from benchmarks.published.model import REFERENCE, agreement, answers, reference, written
from benchmarks.published.rows import PATHS, VLLM, Case, Row, rows
from benchmarks.servers import Server, generated, other_server, running_stack, server_of

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("requests/s", "mean ms", "p50 ms", "p95 ms", "p99 ms")
PEERS = {"vllm": ("vllm", "torch", "transformers")}
LAUNCHES, WARM_UP = 3, 0.1
"""Products that are timed together; seconds of load before the window, as a share of the window's."""
PATIENT_WORKER, PATIENT_FRONTEND = {"queue-seconds": 0}, {"default-timeout": 600, "max-requests-at-once": 4096}
"""Nothing is refused, as vLLM refuses nothing. By default a call has 30 s; here 4 clients of 8,192 tokens take more."""
CACHE = {"VLLM_CPU_KVCACHE_SPACE": "5"}
"""GiB of keys and values that vLLM keeps: 46,000 tokens of Qwen3-0.6B, so that all texts of a row fit at once."""
PRELOADED = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"), ("libiomp5.so",)
"""Libraries that vLLM's manual wants loaded before all others, the first that is there of each kind."""
LIBRARIES = (
    VENVS / "vllm" / "lib",
    *map(Path, ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")),
)


@contextmanager
def ours(row: Row, folder: Path, threads: int) -> Iterator[Server]:
    """Runs a worker, and a frontend that serves HTTP."""
    worker = {"served-name": row.served_name, "dtype": row.dtype, "max-tokens": row.max_tokens, "threads": threads}
    frontend = {"http-listen": "127.0.0.1:0"} | PATIENT_FRONTEND
    with running_stack(str(folder), worker=worker | PATIENT_WORKER | dict(row.ours), frontend=frontend) as running:
        yield replace(server_of(running), address=running.frontends[0].http_url)


@contextmanager
def vllm(row: Row, folder: Path, flags: Sequence[str], cores: Sequence[int]) -> Iterator[Server]:
    """Runs vLLM on the same files. Exits where `make vllm` has not installed it."""
    port = str(free_port())
    command: list[str | Path] = [program_of("vllm", "vllm"), "serve", folder]
    command += ["--runner", "pooling", "--dtype", row.dtype, "--max-model-len", str(row.max_tokens)]
    command += ["--served-model-name", row.served_name, "--host", "127.0.0.1", "--port", port]
    command += ["--disable-uvicorn-access-log", *flags]
    if row.kind == "tokens":
        command += ["--pooler-config", '{"task": "token_embed"}']
    places = ([folder / name for name in names for folder in LIBRARIES] for names in PRELOADED)
    preloaded = [present[0] for paths in places if (present := [path for path in paths if path.is_file()])]
    environment = HUGE_PAGES | CACHE | {"LD_PRELOAD": ":".join(map(str, preloaded))}
    environment |= {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
    url = f"http://127.0.0.1:{port}"
    with other_server(f"{row.name}, vLLM", command, url, environment) as processes:
        yield Server(address=url, pids={"vllm": processes})


def products(row: Row) -> Figures:
    """Measures how many tokens a second there would be if nothing but the products of linear layers took time."""
    shape, run = roofline.shape(row.model), our_kernels.product(getattr(torch, row.dtype))
    flops = run() / our_kernels.seconds(run, torch.device("cpu"), LAUNCHES)
    layers, projected = row.layers or shape.layers, row.projected or shape.projected
    return {RATE: flops / (2 * replace(shape, layers=layers, projected=projected).weights)}


def turn(row: Row, case: Case, server: Server, seconds: float, rounds: Iterator[int]) -> Figures:
    """Runs the clients of a case, whose texts are others in every round."""
    url, (seed, beside_seed) = server.address + PATHS[row.kind], row.seeds(case, next(rounds))
    beside = case.beside and Load(
        address=url,
        workload=case.beside.workload,
        clients=case.beside.clients,
        seed=beside_seed,
        model=row.served_name,
    )
    return generated(
        replace(server, address=url),
        case.workload,
        clients=case.clients,
        requests=case.requests,
        seconds=seconds,
        warmup=WARM_UP * seconds,
        seed=seed,
        model=row.served_name,
        reconnecting=row.reconnecting,
        slowest=row.latency,
        beside=beside,
    )


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts all sides of a row and compares their answers; yields their turns. Exits where one does not start, and
    where ours answers wrongly."""
    row = rows(options.quick)[options.row]
    seconds, cores = options.seconds if options.quick else row.seconds, sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores := cores[: options.threads])  # servers and clients inherit it
    torch.set_num_threads(len(cores))
    folder = written(row, options.folder / row.name)
    model = reference(row, folder)
    with ExitStack() as cleanup:
        servers = {OURS: cleanup.enter_context(ours(row, folder, len(cores)))}
        for setting, flags in row.vllm.items():
            side = f"{VLLM}, {setting}" if setting else VLLM
            servers[side] = cleanup.enter_context(vllm(row, folder, flags, cores))
        options.notes["says"] = f"{row.says}; {row.served_name} in {row.dtype}. {row.published}."
        options.notes["agreement"] = {
            side: {REFERENCE: agreement(side, answers(row, server.address), model)} for side, server in servers.items()
        }
        options.settings.update(
            seconds=seconds,
            requests={case.name: case.requests for case in row.cases},
            flags={f"{VLLM}, {setting}" if setting else VLLM: " ".join(flags) for setting, flags in row.vllm.items()},
        )
        cases: dict[str, dict[str, Turn]] = {}
        for case in row.cases:
            sides = {side: partial(turn, row, case, server, seconds, count()) for side, server in servers.items()}
            cases[case.name] = {**sides, ALONE: partial(products, row)}
        yield cases
