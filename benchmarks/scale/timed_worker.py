"""A worker whose steps take a set time: the worker's own service, link and driver, and an engine that computes nothing.

`python -m benchmarks.scale.timed_worker --listen 127.0.0.1:0 --tokens-per-second 4000` serves MiniLM's card and
tokenizer until SIGTERM; without a speed it answers at once.
"""

import argparse
import asyncio
import gc
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache

from tokenizers import Tokenizer

from benchmarks.scale.timed_engine import StepTime, TimedEngine
from benchmarks.workloads import MAX_TOKENS, MINILM, NAME, minilm_folder
from gpu_worker.link.request_check import JobLimits, check_message
from gpu_worker.link.server import Ready, WorkerServicer
from gpu_worker.schedule.driver import Driver
from gpu_worker.schedule.scheduler import Scheduler
from selvage.worker.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from shared.card import ModelCard
from shared.offload import Inline
from shared.server.calls import Calls
from shared.server.services import WORKER_SERVICES
from shared.server.serving import LAST_WORDS, Server, until_told_to_stop
from shared.telemetry import logs
from shared.tokenizer_files import TOKENIZER_FILE
from shared.vectors import OutputKind, Task

WIDTH, STEP_TOKENS, QUEUED_TOKENS, QUEUE_SECONDS = 384, 4096, 8_388_608, 30.0
"""Numbers of a row; most tokens of a step; the limits of the queue, as the worker has them by default."""
UNSENT_BYTES = 512 * 1024 * 1024


@cache
def tokenizer() -> Tokenizer:
    """MiniLM's tokenizer, as a worker sends it: it neither cuts nor pads."""
    read = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    read.no_truncation()
    read.no_padding()
    return read


def card(width: int = WIDTH) -> ModelCard:
    """A card with all that MiniLM's says of vectors. `width`: numbers of each."""
    ids = {role: tokenizer().token_to_id(f"[{role.upper()}]") for role in ("cls", "sep", "pad", "mask", "unk")}
    return ModelCard(
        id=NAME,
        family="bert",
        outputs=(OutputKind.DENSE, OutputKind.MULTI_VECTOR),
        methods=(),
        default_method=None,
        pooling="mean",
        dimensions=width,
        multi_vector_dimensions=width,
        normalizes=True,
        max_tokens=MAX_TOKENS,
        vocabulary_size=tokenizer().get_vocab_size(),
        dtype="float32",
        device="none",
        attention="",
        linear="",
        fingerprint="a timed worker",
        special_tokens={role: number for role, number in ids.items() if number is not None},
        tasks=(Task.EMBED,),
        aliases=(MINILM,),
    )


def timed_driver(time: StepTime, step_tokens: int, width: int = WIDTH) -> Driver:
    """The worker's driver of a timed engine, by the running event loop's clock."""
    scheduler = Scheduler(
        TimedEngine(time, width),
        step_tokens=step_tokens,
        queued_tokens=QUEUED_TOKENS,
        queue_seconds=QUEUE_SECONDS,
        clock=asyncio.get_running_loop().time,
    )
    return Driver(scheduler, Inline())


def servicer_of(driver: Driver, card: ModelCard, content: bytes, threads: Executor) -> WorkerServicer:
    """The worker's service, ready. `content`: the tokenizer's file. `threads`: where large messages are parsed."""
    servicer = WorkerServicer(threads, unsent_bytes=UNSENT_BYTES, limits=JobLimits(), log_jobs=False)
    servicer.ready = Ready(
        card=card,
        files={TOKENIZER_FILE: content},
        driver=driver,
        queued_tokens=QUEUED_TOKENS,
        queue_seconds=QUEUE_SECONDS,
    )
    return servicer


async def serve(listen: str, time: StepTime, step_tokens: int) -> None:
    """Serves until SIGTERM."""
    threads, driver = ThreadPoolExecutor(2, "parse"), timed_driver(time, step_tokens)
    servicer = servicer_of(driver, card(), tokenizer().to_str().encode(), threads)
    calls = Calls(timeout=None, log_calls=False)
    server = Server(
        WORKER_SERVICES, calls, threads=threads, reflect=False, connection_age=False, check_large=check_message
    )
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.timed_worker", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--tokens-per-second", type=float, default=0.0, help="of a step; 0 computes at once")
    parser.add_argument("--overhead", type=float, default=0.0, help="seconds that each step takes beside its tokens")
    parser.add_argument("--step-tokens", type=int, default=STEP_TOKENS, help="most tokens of a step (%(default)s)")
    options = parser.parse_args()
    logs.configure("json", "info")
    time = StepTime(speed=options.tokens_per_second, overhead=options.overhead)
    asyncio.run(serve(options.listen, time, options.step_tokens))


if __name__ == "__main__":
    main()
