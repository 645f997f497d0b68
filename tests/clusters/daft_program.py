"""Daft, in a venv of its own: reads a Parquet file, has processes embed it, writes a folder. Asked by one JSON."""

import json
import sys

import daft

from selvage.daft import embedder


def main(
    source: str,
    folder: str,
    actors: int,
    options: dict[str, object],
    *,
    on_ray: bool = False,
    columns: tuple[str, ...] = ("dense", "reason"),
) -> None:
    """By Daft's own runner, or on Ray's actors."""
    if on_ray:
        import ray

        ray.init(num_cpus=actors + 1, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
        daft.set_runner_ray()
    frame = daft.read_parquet(source)
    if on_ray:
        frame = frame.into_partitions(12)
    embed = embedder(concurrency=actors, batch_size=64, **options)
    frame = frame.with_column("vectors", embed(frame["text"], frame["id"]))
    frame.select("id", *(frame["vectors"][name].alias(name) for name in columns)).write_parquet(folder)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
