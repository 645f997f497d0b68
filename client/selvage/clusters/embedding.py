"""Texts -> a table with a row for each, in a process that serves many batches. Knows neither Ray nor Daft."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np

from selvage.bulk.arrow import arrays, pyarrow
from selvage.bulk.batch_queue import BatchQueue
from selvage.bulk.failures import Failed
from selvage.bulk.meter import Meter
from selvage.bulk.plan import RowPlan
from selvage.bulk.row_blocks import row_blocks
from selvage.bulk.rows import BadRow, Columns, Entry, Row, checked_row
from selvage.bulk.targets import card_of, running_targets
from selvage.bulk.values import columns
from selvage.calls.streamed_call import BATCH_LETTERS, BATCHES_AHEAD
from selvage.clusters.options import services, split_options
from selvage.clusters.schema import schema
from selvage.messages.embedding import Template

EMPTY = "EMPTY"
"""The reason of a row whose text is null, or has no letter."""


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
        in_flight: int = BATCHES_AHEAD,
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
        - `message_texts`, `in_flight`: most texts of a message, and most messages ahead of replies for each target.
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
        outputs = [output] if isinstance(output, str) else list(output)
        vectors, other_options = split_options(options)
        template = Template(model=model if target else "", outputs=outputs, return_token_ids=False, **vectors)
        self._columns = Columns(text=column, id=id_column, copied=())
        self._raises, self._keep_empty = on_error == "raise", keep_empty
        self._queue = BatchQueue(
            batch_size=message_texts,
            letters=BATCH_LETTERS,
            in_flight=in_flight,
            patience=patience,
            has_ids=bool(id_column),
        )
        tell = Meter().tell
        target_services = services(model, target, other_options)
        try:
            card = card_of(target_services, patience, tell)
        except Failed as failed:
            raise without_flag(failed) from failed
        if fingerprint and fingerprint != card.fingerprint:
            raise Failed(f"the model's fingerprint is {card.fingerprint}, wanted is {fingerprint}")
        self.schema = schema(outputs, vectors, card.dimensions, card.multi_vector_dimensions)
        self._resources = ExitStack()
        self._resources.enter_context(running_targets(target_services, template, card.fingerprint, self._queue, tell))

    def table(self, texts: Sequence[Any], ids: Sequence[Any] | None = None) -> Any:
        """Embeds a batch: a pyarrow.Table of `schema`, with a row for each text in their order.

        `ids`: an id for each text, where there is an `id_column`. Rows without a vector have null everywhere but in
        `reason`, where all others have null. Raises ValueError with the first row at fault unless `on_error` is "null";
        Failed where no target answers, or the service refuses the options.
        """
        if (ids is None) == bool(self._columns.id):
            raise ValueError("`ids` and `id_column` go together")
        extras: list[tuple[Any, ...]] = [()] * len(texts) if ids is None else [(row_id,) for row_id in ids]
        entries = (
            checked_row(self._columns, number, "", number, text, extra)
            for number, (text, extra) in enumerate(zip(texts, extras, strict=True))
        )
        rows, values, bad = self._embed(entries)
        if bad and self._raises:
            raise ValueError(self._fault(bad[0], len(texts)))
        return self._as_table(len(texts), [row.number for row in rows], values, bad)

    def close(self) -> None:
        """Ends batches in progress, and the connections or the model."""
        self._resources.close()

    def _embed(self, entries: Iterable[Entry]) -> tuple[list[Row], dict[str, list[Any]], list[BadRow]]:
        """Rows with their values, and those at fault; empty ones are in neither."""
        plan = RowPlan(rows_per_shard=sys.maxsize)
        blocks = list(row_blocks(entries, plan, most=sys.maxsize, keep_empty=self._keep_empty))
        rows: list[Row] = []
        values: dict[str, list[Any]] = {}
        bad: list[BadRow] = []
        for block in blocks:
            self._queue.add_block(block)
        try:
            for block in blocks:
                self._queue.take_block(block)
                good, block_values = block.good_rows()
                rows += good
                bad += block.bad_rows()
                for name, column in block_values.items():
                    values.setdefault(name, []).extend(column)
        except Failed as failed:
            raise without_flag(failed) from failed
        return rows, values, bad

    def _as_table(self, count: int, places: list[int], values: dict[str, list[Any]], bad: list[BadRow]) -> Any:
        """A table of `count` rows, of which those at `places` have values."""
        import pyarrow as pa

        reasons: list[str | None] = [EMPTY] * count
        for row in bad:
            reasons[row.number] = row.reason
        for place in places:
            reasons[place] = None
        value_schema = self.schema.remove(self.schema.get_field_index("reason"))
        if places:
            by_name = arrays(columns(values))
            table = pa.table({name: by_name[name] for name in value_schema.names}).cast(value_schema)
        else:
            table = value_schema.empty_table()
        if len(places) < count:
            order = np.full(count, -1)
            order[places] = np.arange(len(places))
            table = table.take(pa.array(order, mask=order < 0))
        return table.append_column("reason", pa.array(reasons, pa.string()))

    def _fault(self, bad: BadRow, count: int) -> str:
        row_id = f", whose {self._columns.id} is {bad.id!r}" if self._columns.id else ""
        return (
            f"row {bad.number} of a batch of {count}{row_id}: {bad.reason} (on_error='null' goes on without such rows)"
        )


def without_flag(failed: Failed) -> Failed:
    """The same error with the name of an option in place of the command's flag."""
    return Failed(str(failed).removeprefix("--"))
