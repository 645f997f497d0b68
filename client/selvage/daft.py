"""Daft: vectors as a column of structs. The extra daft: `pip install '.[daft]'`; docs/clusters.md explains it.

    embed = embedder("BAAI/bge-m3", dimensions=1024, truncate=True, concurrency=8, gpus=1)
    frame = frame.with_column("vectors", embed(frame["body"]))
    frame = frame.select("id", frame["vectors"]["dense"])

With `target=["frontend-0:50051", "frontend-1:50051"]` the model runs there, and processes are its clients.
"""

from typing import Any

import daft
import pyarrow as pa

from selvage.clusters import BatchEmbedding, result_schema, vector_options


def embedder(
    model: str = "",
    *,
    concurrency: int = 1,
    gpus: float = 0,
    batch_size: int = 4096,
    ray_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Makes a function of Daft that turns a column of texts into a column of structs.

    It takes a column of texts, and a column of ids where there is an `id_column`. Its structs have the fields of
    `BatchEmbedding.table`. `concurrency`: number of processes, each with a `BatchEmbedding` (actors where Daft runs on
    Ray). `gpus`: GPUs of each process. `batch_size`: rows that a process gets at a time. `ray_options`: see `daft.cls`.
    `options`: those of `BatchEmbedding`.

    Daft needs the type of the column before the model is loaded. So vectors have a fixed size only where `dimensions`
    is passed; otherwise they are lists.
    """
    fields = result_schema(vector_options(options.get("output", "dense"), options))

    class Embedder:
        def __init__(self) -> None:
            self._embedding = BatchEmbedding(model, **options)

        @daft.method.batch(return_dtype=daft.DataType.from_arrow_type(pa.struct(list(fields))), batch_size=batch_size)
        def __call__(self, texts: daft.Series, ids: daft.Series | None = None) -> Any:
            id_values = None if ids is None else ids.to_pylist()
            return self._embedding.table(texts.to_pylist(), id_values).cast(fields).to_struct_array()

    cls = daft.cls(Embedder, gpus=gpus, max_concurrency=concurrency, use_process=True, ray_options=ray_options)
    return cls()
