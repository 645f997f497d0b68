"""Ray Data, and the same engine without it, in a Python of their own (`make clusters`): a file to rows with vectors.

Each run gives seconds from the first batch's beginning to the last one's end, seconds in all, CPU seconds of the
actors, and how many there were. An engine has one thread.
"""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray

from benchmarks.peers.answering import answer
from selvage.batches.embedding import Embedding
from selvage.ray import Embedder

Run = Callable[[], Any]
CORES, BLOCKS, BATCH = 4, 12, 64
"""Cores that Ray is told of: an actor wants one, and reading one."""


class Timed(Embedder):
    """Tells with each row when its batch was begun and ended, by whom, and the CPU seconds of that process then."""

    async def __call__(self, batch: Any) -> Any:
        begun = self.told("begun")
        table = await super().__call__(batch)
        for name, value in (begun | self.told("ended") | {"pid": os.getpid()}).items():
            table = table.append_column(name, pa.array([value] * table.num_rows))
        return table

    @staticmethod
    def told(what: str) -> dict[str, float]:
        return {what: time.time(), f"CPU {what}": time.process_time()}


def written(table: Any, target: str) -> None:
    order = pc.sort_indices(pc.cast(table["id"], pa.int64()))
    pq.write_table(table.select(["id", "dense"]).take(order), target)


def on_ray(source: str, target: str, actors: int, options: dict[str, Any]) -> Run:
    def run() -> Any:
        start = time.time()
        made = (
            ray.data.read_json(source, override_num_blocks=1)
            .repartition(BLOCKS)
            .map_batches(
                Timed,
                fn_constructor_kwargs={"column": "text", **options},
                compute=ray.data.ActorPoolStrategy(size=actors, max_concurrent_calls_per_actor=2),
                batch_size=BATCH,
            )
        )
        table = pa.concat_tables(ray.get(made.to_arrow_refs()))
        whole = time.time() - start
        written(table, target)
        spent = table.group_by("pid").aggregate([("CPU begun", "min"), ("CPU ended", "max")])
        cpu = pc.sum(pc.subtract(spent["CPU ended_max"], spent["CPU begun_min"])).as_py()
        return [pc.max(table["ended"]).as_py() - pc.min(table["begun"]).as_py(), whole, cpu, spent.num_rows]

    return run


def without_ray(source: str, target: str, engine: Embedding) -> Run:
    read = [json.loads(line) for line in Path(source).read_text().splitlines()]

    def run() -> Any:
        start, before = time.time(), time.process_time()
        table = engine.table([each["text"] for each in read])
        whole, cpu = time.time() - start, time.process_time() - before
        written(table.append_column("id", pa.array([each["id"] for each in read])), target)
        return [whole, whole, cpu, 1]

    return run


if __name__ == "__main__":
    ray.init(num_cpus=CORES, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.wait_for_min_actors_s = False, 300  # else work begins at the first of them
    loaded = Embedding(model="minilm", threads=1, truncate=True)
    loaded.table(["warm"])
    answer({"ray": on_ray, "engine": partial(without_ray, engine=loaded)})
