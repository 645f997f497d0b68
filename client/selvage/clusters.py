"""Batches of texts in, columns of vectors out, in a process that serves many batches: what Ray and Daft have in common.

Threads may embed several batches at a time. `selvage.bulk.sender` cuts texts into messages, sends them again after
errors, and finds the text at fault; see docs/clusters.md.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from selvage.bulk import Failed
from selvage.bulk.arrow_columns import OPTIONS, pyarrow, vector_schema
from selvage.bulk.sender import IN_FLIGHT, Sender, Target, Work, card_of
from selvage.client import Client
from selvage.messages.options import enum_names
from selvage.results import ModelCard
from selvage.v1 import vectors_pb2


class BatchEmbedding:
    """A model, in this process or behind targets, that embeds batches of texts.

    Threads may share it, and should: while one waits for its batch, those of other threads are prepared and computed.
    """

    def __init__(
        self,
        model: str = "",
        *,
        target: str | Sequence[str] = (),
        column: str = "text",
        id_column: str = "",
        output: str | Sequence[str] = "dense",
        on_error: Literal["raise", "null"] = "raise",
        keep_empty: bool = False,
        message_texts: int = 64,
        in_flight: int = IN_FLIGHT,
        patience: float = 600.0,
        fingerprint: str = "",
        **options: Any,
    ) -> None:
        """Returns when the model is loaded, or a target has answered.

        - `model`: the model that this process runs, as `Engine` takes it; with targets, the name of theirs.
        - `target`: one address, or several that share the work.
        - `column`, `id_column`: what messages call the texts, and the ids of rows at fault.
        - `output`: "dense", "sparse", "multi_vector", or a list of these.
        - `on_error`: for a text at fault, "raise" an error, or "null": its row has a reason in place of a vector.
        - `keep_empty`: embed texts without a letter too.
        - `message_texts`, `in_flight`: most texts of a message, and most messages under way to each target.
        - `patience`: seconds to go on trying while no target answers.
        - `fingerprint`: that of the model's card; any other model is refused.
        - `options`: those of `Client.embed` for vectors, and with targets those of `Client` for the connection
          (`priority` is "bulk"), else those of `Engine`.

        Raises TypeError and ValueError for options that make no sense, Failed where no target answers or the model has
        another fingerprint.
        """
        if on_error not in ("raise", "null"):
            raise ValueError(f"on_error is {on_error!r}, must be 'raise' or 'null'")
        pyarrow("a batch")
        self._column, self._id_column = column, id_column
        self._raises, self._keep_empty = on_error == "raise", keep_empty
        vectors = vector_options(output, options)
        others = {name: value for name, value in options.items() if name not in OPTIONS}
        targets = _targets(model, target, others)
        card = _card(targets, patience, fingerprint)
        self.schema = result_schema(vectors, card.dimensions, card.multi_vector_dimensions)
        self._sender = Sender(
            targets,
            vectors,
            fingerprint=card.fingerprint,
            message_texts=message_texts,
            in_flight=in_flight,
            patience=patience,
        )

    def table(self, texts: Sequence[Any], ids: Sequence[Any] | None = None) -> Any:
        """Embeds a batch: a pyarrow.Table of `schema`, with a row for each text in their order.

        `ids`: an id for each text, where there is an `id_column`. Rows without a vector have null everywhere but in
        `reason`, where all others have null. Raises ValueError with the first row at fault unless `on_error` is "null";
        Failed where no target answers, or the service refuses the options.
        """
        if (ids is None) == bool(self._id_column):
            raise ValueError("`ids` and `id_column` go together")
        work = Work(texts, self._column, keep_empty=self._keep_empty)
        self._sender.submit(work)
        self._sender.wait(work)
        if self._raises and (bad := work.bad_rows()):
            row_id = "" if ids is None else f", whose {self._id_column} is {ids[bad[0]]!r}"
            fault = f"row {bad[0]} of a batch of {len(texts)}{row_id}: {work.reasons[bad[0]]}"
            raise ValueError(f"{fault} (on_error='null' goes on without such rows)")
        return self._as_table(work)

    def close(self) -> None:
        """Ends batches in progress, and the connections or the model."""
        self._sender.close()

    def _as_table(self, work: Work) -> Any:
        """The vectors, with a row of nulls and a reason for each text that has none."""
        import pyarrow as pa

        names = [name for name in self.schema.names if name != "reason"]
        vectors = work.table()
        places: list[int | None] = [None] * len(work.reasons)
        for place, row in enumerate(work.rows_with_vectors()):
            places[row] = place
        types = pa.schema([self.schema.field(name) for name in names])
        table = types.empty_table() if vectors is None else vectors.select(names).cast(types)
        table = table.take(pa.array(places, pa.int64()))
        return table.append_column("reason", pa.array(work.reasons, pa.string()))


def vector_options(output: str | Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `Client.embed` among `options`, and `output` as a list. Raises ValueError for other outputs."""
    outputs = [output] if isinstance(output, str) else list(output)
    choices = enum_names(vectors_pb2.OutputKind)
    for name in outputs:
        if name not in choices:
            raise ValueError(f"output is {name!r}; there are {', '.join(choices)}")
    return {"output": outputs, **{name: value for name, value in options.items() if name in OPTIONS}}


def result_schema(vectors: Mapping[str, Any], dense: int = 0, multi_vector: int = 0) -> Any:
    """The pyarrow.Schema of `BatchEmbedding.table`: that of `vector_schema`, and `reason`, a string."""
    import pyarrow as pa

    return vector_schema(vectors, dense, multi_vector).append(pa.field("reason", pa.string()))


def _targets(model: str, target: str | Sequence[str], others: Mapping[str, Any]) -> list[Target]:
    """A client of each target; without any, the model in this process."""
    names = [target] if isinstance(target, str) and target else list(target)
    if names:
        connection = {"model": model, "priority": "bulk", "retries": 0, **others}
        return [Target(name, Client(name, **connection)) for name in names]
    if not model:
        raise ValueError("either `model` runs in this process, or `target` names services")
    from selvage import Engine

    return [Target(model, Engine(model, **others))]


def _card(targets: Sequence[Target], patience: float, fingerprint: str) -> ModelCard:
    """The card of the model. Raises Failed where there is none, or its fingerprint is another; the clients end then."""
    try:
        card = card_of(targets, patience, lambda line: print(line, file=sys.stderr, flush=True))
        if fingerprint and fingerprint != card.fingerprint:
            raise Failed(f"the model's fingerprint is {card.fingerprint}, wanted is {fingerprint}")
    except Failed:
        for target in targets:
            target.client.close()
        raise
    return card
