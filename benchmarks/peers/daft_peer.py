"""Daft, by its own runner and on Ray, and the same engine without it, in a Python of their own: a file to rows.

Argument: the runner, `own` or `ray`. Each run gives seconds in all. An engine has one thread.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import daft
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.peers.answering import answer
from selvage.daft import embedder

BATCH, BLOCKS, WIDTH = 1024, 12, 384


def embedded(source: str, target: str, actors: int) -> Callable[[], Any]:
    def run() -> Any:
        start = time.time()
        embed = embedder("minilm", dimensions=WIDTH, concurrency=actors, batch_size=BATCH, threads=1, truncate=True)
        frame = daft.read_json(source)
        frame = frame.into_partitions(BLOCKS) if on_ray else frame
        frame = frame.with_column("vectors", embed(frame["text"]))
        table = frame.select("id", frame["vectors"]["dense"].alias("dense")).to_arrow()
        seconds = time.time() - start
        pq.write_table(table.take(pc.sort_indices(pc.cast(table["id"], pa.int64()))), target)
        return [seconds]

    return run


if __name__ == "__main__":
    on_ray = sys.argv[1] == "ray"
    if on_ray:
        import ray

        ray.init(num_cpus=8, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
        daft.set_runner_ray()
    answer({"daft": embedded})
