"""Texts -> a table with a row each, in a process that lives on. Knows neither Ray nor Daft."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np

from selvage.bulk.arrow import arrays, pyarrow
from selvage.bulk.batch_queue import Board
from selvage.bulk.failures import Failed
from selvage.bulk.plan import RowPlan
from selvage.bulk.row_blocks import windows
from selvage.bulk.rows import BadRow, Columns, Row, entry
from selvage.bulk.targets import card_of, targets
from selvage.bulk.values import columns
from selvage.calls.streamed_call import BATCH_LETTERS, BATCHES_AHEAD
from selvage.clusters.options import services, split_options
from selvage.clusters.schema import schema
from selvage.messages.embedding import Template

EMPTY = "EMPTY"
"""The reason of a row whose text is null, or has no letter."""


class BatchEmbedding:
    """A model as a batch sees it: in this process, or behind targets. Threads may share it, and should: while one waits
    for its batch, those of others are prepared and computed."""

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

        `model`: what runs in this process, as `Engine` takes it; with `target`, one address or several that share the
        work, the name of theirs. `column` and `id_column` are what messages call the texts, and the row at fault.
        `output`: "dense", "sparse", "multi_vector", or a list of these. `on_error`: what a text at fault does, "raise",
        or "null": its row has a reason in place of a vector. `keep_empty`: embed texts without a letter too.
        `message_texts`, `in_flight`: texts of a message, and messages under way to each target. `patience`: seconds to
        go on trying while nobody answers. `fingerprint`: of the model card; any other model is refused.

        `options`: those of `Client.embed` that say how a vector is made; with targets those of `Client` that say who
        asks (`priority` is "bulk"), else those of `Engine`.

        Raises TypeError and ValueError for what makes no sense, Failed where nobody answers or the model is another.
        """
        if on_error not in ("raise", "null"):
            raise ValueError(f"on_error is {on_error!r}, must be 'raise' or 'null'")
        pyarrow("a batch")
        outputs = [output] if isinstance(output, str) else list(output)
        vectors, others = split_options(options)
        template = Template(model=model if target else "", outputs=outputs, return_token_ids=False, **vectors)
        self._columns = Columns(text=column, id=id_column, kept=())
        self._raises, self._keep_empty = on_error == "raise", keep_empty
        self._board = Board(
            batch_size=message_texts,
            letters=BATCH_LETTERS,
            in_flight=in_flight,
            patience=patience,
            has_ids=bool(id_column),
        )
        found = services(model, target, others)
        try:
            card = card_of(found, patience)
        except Failed as failed:
            raise unflagged(failed) from failed
        if fingerprint and fingerprint != card.fingerprint:
            raise Failed(f"the model's fingerprint is {card.fingerprint}, wanted is {fingerprint}")
        self.schema = schema(outputs, vectors, card.dimensions, card.multi_vector_dimensions)
        self._open = ExitStack()
        self._open.enter_context(targets(found, template, card.fingerprint, self._board))

    def table(self, texts: Sequence[Any], ids: Sequence[Any] | None = None) -> Any:
        """A pyarrow.Table of `schema`, a row a text in their order; `ids`: of each, where there is an `id_column`.

        Rows without a vector have null everywhere but in `reason`, where all others have null. Raises ValueError with
        the first row at fault unless `on_error` is "null"; Failed where nobody answers, or the options are refused.
        """
        if (ids is None) == bool(self._columns.id):
            raise ValueError("`ids` and `id_column` go together")
        beside: list[tuple[Any, ...]] = [()] * len(texts) if ids is None else [(each,) for each in ids]
        entries = (
            entry(self._columns, number, "", number, text, others)
            for number, (text, others) in enumerate(zip(texts, beside, strict=True))
        )
        rows, values, bad = self._answered(entries)
        if bad and self._raises:
            raise ValueError(self._told(bad[0], len(texts)))
        return self._laid_out(len(texts), [row.number for row in rows], values, bad)

    def close(self) -> None:
        """Ends what is under way."""
        self._open.close()

    def _answered(self, entries: Any) -> tuple[list[Row], dict[str, list[Any]], list[BadRow]]:
        """Rows with their values, and those at fault; empty ones are in neither."""
        one = RowPlan(rows_per_shard=sys.maxsize)
        found = list(windows(entries, one, most=sys.maxsize, keep_empty=self._keep_empty))
        rows: list[Row] = []
        values: dict[str, list[Any]] = {}
        bad: list[BadRow] = []
        for window in found:
            self._board.add(window)
        try:
            for window in found:
                self._board.finished(window)
                good, answers = window.good()
                rows += good
                bad += window.bad_rows()
                for name, each in answers.items():
                    values.setdefault(name, []).extend(each)
        except Failed as failed:
            raise unflagged(failed) from failed
        return rows, values, bad

    def _laid_out(self, count: int, places: list[int], values: dict[str, list[Any]], bad: list[BadRow]) -> Any:
        import pyarrow as pa

        reasons: list[str | None] = [EMPTY] * count
        for each in bad:
            reasons[each.number] = each.reason
        for place in places:
            reasons[place] = None
        kept = self.schema.remove(self.schema.get_field_index("reason"))
        found = arrays(columns(values)) if places else {}
        table = pa.table({name: found[name] for name in kept.names}).cast(kept) if places else kept.empty_table()
        if len(places) < count:
            order = np.full(count, -1)
            order[places] = np.arange(len(places))
            table = table.take(pa.array(order, mask=order < 0))
        return table.append_column("reason", pa.array(reasons, pa.string()))

    def _told(self, bad: BadRow, count: int) -> str:
        named = f", whose {self._columns.id} is {bad.id!r}" if self._columns.id else ""
        return (
            f"row {bad.number} of a batch of {count}{named}: {bad.reason} (on_error='null' goes on without such rows)"
        )


def unflagged(failed: Failed) -> Failed:
    """The same where there is no command with flags."""
    return Failed(str(failed).removeprefix("--"))
