"""Daft: vectors as a column of structs. The extra daft: `pip install '.[daft]'`; docs/clusters.md explains it.

    embed = embedder("BAAI/bge-m3", dimensions=1024, truncate=True, concurrency=8, gpus=1)
    frame = frame.with_column("vectors", embed(frame["body"]))
    frame = frame.select("id", frame["vectors"]["dense"])

With `target=["frontend-0:50051", "frontend-1:50051"]` the model runs there, and processes are clients of it.
"""

from typing import Any

import daft
import pyarrow as pa

from selvage.clusters.embedding import BatchEmbedding
from selvage.clusters.options import parted
from selvage.clusters.schema import schema


def embedder(
    model: str = "",
    *,
    concurrency: int = 1,
    gpus: float = 0,
    batch_size: int = 4096,
    ray_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A class of Daft: called with a column of texts, and one of ids where there is an `id_column`, it gives one
    of structs with the fields of `BatchEmbedding.table`.

    `concurrency`: processes that have an `BatchEmbedding` each, actors where Daft runs on Ray; `gpus`: of each;
    `batch_size`: rows that one is given at a time; `ray_options`: see `daft.cls`. `options`: those of `BatchEmbedding`.
    Daft wants to know the type before anybody is asked: vectors have a fixed size where `dimensions` is given, else
    they are lists.
    """
    output = options.get("output", "dense")
    vectors, _ = parted(options)
    fields = schema([output] if isinstance(output, str) else output, vectors, None, None)

    class Embedder:
        def __init__(self) -> None:
            self._embedding = BatchEmbedding(model, **options)

        @daft.method.batch(return_dtype=daft.DataType.from_arrow_type(pa.struct(list(fields))), batch_size=batch_size)
        def __call__(self, texts: daft.Series, ids: daft.Series | None = None) -> Any:
            named = None if ids is None else ids.to_pylist()
            return self._embedding.table(texts.to_pylist(), named).cast(fields).to_struct_array()

    made = daft.cls(Embedder, gpus=gpus, max_concurrency=concurrency, use_process=True, ray_options=ray_options)
    return made()
