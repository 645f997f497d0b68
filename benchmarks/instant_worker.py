"""A worker that answers at once: the worker's own service, link and driver, and an engine that computes nothing.

`python -m benchmarks.instant_worker --listen 127.0.0.1:0` serves MiniLM's card and tokenizer until SIGTERM. Its vectors
have the right sizes and mean nothing. With `--step-seconds` and `--tokens-per-second` its steps take the time that a
device would take: a thread sleeps for it.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from math import inf
from typing import Any

from tokenizers import Tokenizer

from benchmarks.workloads import MAX_TOKENS, MINILM, NAME, minilm_folder
from gpu_worker.link.request_check import check_message
from gpu_worker.link.server import Ready, WorkerServicer
from gpu_worker.schedule.driver import Driver
from gpu_worker.schedule.interface import JobSlice
from gpu_worker.schedule.scheduler import Scheduler
from selvage.worker.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from shared import reporting
from shared.card import ModelCard
from shared.errors import UnsupportedTask
from shared.jobs import Encode, Job, JobResult, Rows
from shared.query_table import TOKENIZER_FILE
from shared.server.calls import Calls
from shared.server.grpc_server import LAST_WORDS, Server, until_told_to_stop
from shared.server.options import WORKER_SERVICES
from shared.tasks import Inline
from shared.vectors import OutputKind, Task

WIDTH, STEP_TOKENS, QUEUED_TOKENS, QUEUE_SECONDS = 384, 4096, 8_388_608, 30.0
"""Numbers of a row; most tokens of a step; the limits of the queue, as the worker has them by default."""
BYTE = b"\1"
"""What all numbers are made of: repeated, it is a finite number above 0 in every data type."""


class InstantJob:
    """A job whose rows need no computing; see `OpenJob`."""

    room: Sequence[int] = ()
    spared: Sequence[int] = ()

    def __init__(self, job: Job) -> None:
        """Raises UnsupportedTask for all but vectors of texts or of tokens."""
        if not isinstance(job.work, Encode):
            raise UnsupportedTask("a worker that answers at once makes vectors only", field="method")
        self.costs: Sequence[int] = job.tokens.lengths
        self._tokens, self._work = job.tokens, job.work

    def result(self) -> JobResult:
        """As many rows, in the type, as were asked for."""
        tokens, outputs = self._tokens, self._work.outputs
        dense = self._rows(len(tokens)) if OutputKind.DENSE in outputs else None
        by_token = self._rows(tokens.total) if OutputKind.MULTI_VECTOR in outputs else None
        return JobResult(dense=dense, tokens=by_token, row_lengths=tokens.lengths if by_token else ())

    def _rows(self, count: int) -> Rows:
        data_type, width = self._work.data_type, self._work.dimensions or WIDTH
        data, scales = (BYTE * (count * size) for size in (data_type.row_bytes(width), data_type.scale_bytes))
        return Rows(dimensions=width, data=data, scales=scales)


class InstantStep:
    """A step that is on the host once `arrived` is done; see `StepHandle`."""

    def __init__(self, arrived: "Future[None]") -> None:
        self.shared_tokens, self.arrived = 0, arrived

    def collect(self) -> None:
        """There is nothing to hand out: jobs make their results alone."""


class InstantEngine:
    """An engine whose steps take no time, or that of a device: so many seconds, and a second for so many tokens."""

    def __init__(self, step_seconds: float = 0.0, tokens_per_second: float = inf) -> None:
        self._step_seconds, self._tokens_per_second = step_seconds, tokens_per_second
        self._device = ThreadPoolExecutor(1, "device")

    def open(self, job: Job) -> InstantJob:
        """Opens a job, which needs no check but its kind. Raises UnsupportedTask."""
        return InstantJob(job)

    def launch(self, slices: Sequence[JobSlice]) -> InstantStep:
        """Ends a step as it begins, or after its time."""
        seconds = self._step_seconds + sum([job_slice.tokens for job_slice in slices]) / self._tokens_per_second
        if seconds:
            return InstantStep(self._device.submit(time.sleep, seconds))
        arrived: Future[None] = Future()
        arrived.set_result(None)
        return InstantStep(arrived)

    def reclaim(self) -> None:
        """There is no memory to give back."""


@cache
def tokenizer() -> Tokenizer:
    """MiniLM's tokenizer, as a worker sends it: it neither cuts nor pads."""
    read = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    read.no_truncation()
    read.no_padding()
    return read


def card() -> ModelCard:
    """A card with all that MiniLM's says of vectors."""
    ids = tokenizer().get_vocab()
    return ModelCard(
        id=NAME,
        family="bert",
        outputs=(OutputKind.DENSE, OutputKind.MULTI_VECTOR),
        methods=(),
        default_method=None,
        pooling="mean",
        dimensions=WIDTH,
        multi_vector_dimensions=WIDTH,
        normalizes=True,
        max_tokens=MAX_TOKENS,
        vocabulary_size=len(ids),
        dtype="float32",
        device="none",
        attention="",
        linear="",
        fingerprint="a worker that answers at once",
        special_tokens={role: ids[f"[{role.upper()}]"] for role in ("cls", "sep", "pad", "mask", "unk")},
        tasks=(Task.EMBED,),
        aliases=(MINILM,),
    )


async def serve(listen: str, engine: InstantEngine) -> None:
    """Serves until SIGTERM."""
    limits: dict[str, Any] = {"queued_tokens": QUEUED_TOKENS, "queue_seconds": QUEUE_SECONDS}
    driver = Driver(Scheduler(engine, step_tokens=STEP_TOKENS, **limits), Inline())
    threads = ThreadPoolExecutor(2, "parse")
    server = Server(
        WORKER_SERVICES, Calls(timeout=None), threads=threads, connection_age=False, check_large=check_message
    )
    servicer, files = WorkerServicer(threads), {TOKENIZER_FILE: tokenizer().to_str().encode()}
    servicer.ready = Ready(card=card(), files=files, driver=driver, **limits)
    add_WorkerServiceServicer_to_server(servicer, server.grpc)
    serving = asyncio.create_task(driver.run())
    await server.start(listen)
    gc.collect()
    gc.freeze()  # as the worker does
    await server.set_ready(True)
    await until_told_to_stop()
    driver.close()
    await server.stop(LAST_WORDS)
    serving.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instant_worker", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--tokens-per-second", type=float, default=inf)
    options = parser.parse_args()
    reporting.configure("info", console=False)
    asyncio.run(serve(options.listen, InstantEngine(options.step_seconds, options.tokens_per_second)))
