"""Ray Data, in a venv of its own: reads a Parquet file, has actors embed it, writes a folder. Asked by one JSON."""

import json
import sys

import ray

from selvage.ray import Embedder


def main(source: str, folder: str, actors: int, options: dict[str, object]) -> None:
    """Blocks of 250 rows and batches of 64: an actor has several of both under way. Reading wants a CPU too."""
    ray.init(num_cpus=actors + 1, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.read_parquet(source).repartition(12).map_batches(
        Embedder,
        fn_constructor_kwargs=options,
        compute=ray.data.ActorPoolStrategy(size=actors, max_concurrent_calls_per_actor=2),
        batch_size=64,
    ).write_parquet(folder)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
