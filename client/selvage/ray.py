"""Ray Data: `dataset.map_batches(Embedder, ...)`; docs/clusters.md explains it. The extra ray: `pip install '.[ray]'`.

    vectors = dataset.map_batches(
        Embedder,
        fn_constructor_kwargs={"model": "BAAI/bge-m3", "column": "body", "truncate": True},
        compute=ray.data.ActorPoolStrategy(size=8, max_concurrent_calls_per_actor=2),
        num_gpus=1,
        batch_size=1024,
    )

With `{"target": ["frontend-0:50051", "frontend-1:50051"]}` instead of a model, actors are clients of these services.
"""

import asyncio
from typing import Any

from ray.data.block import BlockAccessor

from selvage.clusters import BatchEmbedding


class Embedder:
    """An actor that adds columns of vectors to batches of any format.

    Ray sends it four batches of a block at a time, so that the next is ready while one is computed.
    """

    def __init__(self, model: str = "", *, column: str = "text", prefix: str = "", **options: Any) -> None:
        """`column`: holds the texts. `prefix`: put before the names of new columns. `options`: see `BatchEmbedding`."""
        self._column, self._id, self._prefix = column, options.get("id_column", ""), prefix
        self._embedding = BatchEmbedding(model, column=column, **options)

    async def __call__(self, batch: Any) -> Any:
        """Returns the batch as a pyarrow.Table, with the columns of `BatchEmbedding.table` after its own.

        Raises ValueError where a column is missing, or where a new one exists already, and as `BatchEmbedding.table`
        does.
        """
        table = BlockAccessor.for_block(BlockAccessor.batch_to_block(batch)).to_arrow()
        texts = self._values(table, self._column)
        ids = self._values(table, self._id) if self._id else None
        vectors = await asyncio.to_thread(self._embedding.table, texts, ids)
        for name in vectors.column_names:
            if self._prefix + name in table.column_names:
                raise ValueError(f"the batch has a column {self._prefix + name!r} already; give another `prefix`")
            table = table.append_column(self._prefix + name, vectors[name])
        return table

    def _values(self, table: Any, name: str) -> list[Any]:
        if name not in table.column_names:
            raise ValueError(f"the batch has no column {name!r}; it has {', '.join(table.column_names)}")
        values: list[Any] = table[name].to_pylist()
        return values
