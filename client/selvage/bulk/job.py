"""The whole work: reads tables of rows, has them embedded, writes them in order; goes on after an earlier command."""

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from selvage.bulk import Failed
from selvage.bulk.arrow_columns import pyarrow
from selvage.bulk.files import MANIFEST, InputFile, find_inputs, identity_of
from selvage.bulk.flags import BulkOptions
from selvage.bulk.reader import NUMBERS, Reader, RowPlan, check_inputs
from selvage.bulk.sender import Sender, Target, Work, card_of
from selvage.bulk.shards import Manifest, Shards, lock, published_files, remove_drafts
from selvage.results import ModelCard

TABLE_ROWS = {"dense": 4096, "sparse": 4096, "multi_vector": 512}
"""Rows of a table by output: thousands, so that messages have texts of like length; fewer where tokens have vectors."""

EVERY = 0.2
"""Seconds between two updates of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Numbers of what was done: `rows`, `empty` and `bad` ones in all shards, `texts` by this command in `seconds`."""

    rows: int
    empty: int
    bad: int
    shards: int
    texts: int
    seconds: float


def run(options: BulkOptions, connect: Callable[[], Sequence[Target]], meter: "Meter") -> Summary:
    """Does what is left to do. `connect`: makes the targets, once the inputs are known to be usable.

    Raises Failed; finished shards stay.
    """
    pyarrow("the command")
    files = find_inputs(options.inputs, options.output)
    schema = check_inputs(files, options.columns)
    targets = connect()
    try:
        card = card_of(targets, options.patience, meter.tell)
        with _locked(options):
            manifest = _begin(options, files, card)
            texts = 0
            if manifest.input_rows is None:
                texts = _embed(options, files, schema, _sender(options, targets, card.fingerprint), manifest, meter)
            return _summary(manifest, texts, meter.seconds)
    finally:
        for target in targets:
            target.client.close()


def _locked(options: BulkOptions) -> Any:
    """The output folder, made where it is not there, for this command alone. Raises Failed."""
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        return lock(options.output / MANIFEST)
    except OSError as error:
        raise Failed(f"--output: {options.output} cannot be used: {error.strerror}") from error


def _sender(options: BulkOptions, targets: Sequence[Target], fingerprint: str) -> Sender:
    return Sender(
        targets,
        options.vectors,
        fingerprint=fingerprint,
        message_texts=options.batch_size,
        in_flight=options.in_flight,
        patience=options.patience,
    )


def _summary(manifest: Manifest, texts: int, seconds: float) -> Summary:
    finished = manifest.shards.values()
    return Summary(
        rows=sum(shard.rows for shard in finished),
        empty=sum(shard.empty for shard in finished),
        bad=sum(shard.bad for shard in finished),
        shards=len(finished),
        texts=texts,
        seconds=seconds,
    )


def _embed(
    options: BulkOptions, files: Sequence[InputFile], schema: Any, sender: Sender, manifest: Manifest, meter: "Meter"
) -> int:
    """Embeds and writes the rows that are left; returns the number of texts that have an outcome. Raises Failed."""

    def show() -> None:
        meter.show(sender.answered, reader.fraction_read)

    plan = RowPlan(
        rows_per_shard=options.rows_per_shard,
        index=options.index,
        count=options.count,
        finished=frozenset(manifest.shards),
    )
    reader = Reader(files, options.columns, schema, plan, show)
    shards = Shards(options, manifest, reader.place_of)
    under_way: deque[tuple[Any, Work]] = deque()

    def write_oldest() -> None:
        """Waits until the oldest table is embedded, and writes it."""
        table, work = under_way[0]
        while not sender.wait(work, EVERY):
            show()
        under_way.popleft()
        shards.add_rows(_beside_vectors(options, table), work.reasons, work.table())
        show()

    try:
        for table in reader.tables(min(TABLE_ROWS[output] for output in options.vectors["output"])):
            meter.begin(reader.fraction_read)
            while len(under_way) > sender.target_count:
                write_oldest()
            work = Work(_values(table[options.columns.text]), options.columns.text, keep_empty=options.keep_empty)
            under_way.append((table, work))
            sender.submit(work)
        while under_way:
            write_oldest()
        shards.complete(reader.total)
    finally:
        sender.close()
        shards.discard()
    return sender.answered


def _values(column: Any) -> list[Any]:
    """The texts of a column, with an error in place of one that is no UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]
    return values


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def _beside_vectors(options: BulkOptions, table: Any) -> Any:
    """The columns of the output that come from the input: `row`, `id`, and the copied ones."""
    names = {"row": NUMBERS, **({"id": options.columns.id} if options.columns.id else {})}
    names |= {name: name for name in options.columns.copied}
    return table.select(list(names.values())).rename_columns(list(names))


def _begin(options: BulkOptions, files: Sequence[InputFile], card: ModelCard) -> Manifest:
    """Reads an earlier command's manifest, or writes a new one, and removes files that none names. Raises Failed."""
    path = options.output / MANIFEST
    origin = {
        "settings": options.settings_by_flag,
        "inputs": [identity_of(file) for file in files],
        "model": {"id": card.id, "fingerprint": card.fingerprint},
    }
    try:
        earlier = None if options.restart else Manifest.of_earlier_command(path, origin)
        manifest = earlier or Manifest(path, origin)
        remove_drafts(options.output)
        unnamed = [file for file, shard in published_files(options.output).items() if shard not in manifest.shards]
        if earlier is None:
            if unnamed and not options.restart:
                fault = f"--output: {options.output} holds {unnamed[0].name}, which no manifest names"
                raise Failed(f"{fault}; take another folder, or throw such files away with --restart")
            manifest.save()  # before files are removed, so that no manifest names a removed file
        for file in unnamed:  # of a command that was killed before its manifest named them, or was begun anew
            file.unlink()
    except OSError as error:
        raise Failed(f"--output: {options.output} cannot be written: {error.strerror or error}") from error
    return manifest


class Meter:
    """A line such as `12,345 texts, 2,300 a second, 25 %, 0:03:10 left`, where somebody watches."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = sys.stderr if out is None else out
        self._clock, self._start, self._shown = clock, clock(), float("-inf")
        self._skipped: float | None = None
        self._width = 0

    @property
    def seconds(self) -> float:
        """Seconds since the first text was read; before that, since the meter was made."""
        return max(self._clock() - self._start, 1e-9)

    def begin(self, fraction: float) -> None:
        """Starts the time where the first text was read; `fraction` of the input before it was finished earlier."""
        if self._skipped is None:
            self._skipped, self._start = fraction, self._clock()

    def show(self, texts: int, fraction: float) -> None:
        """Shows now and then that `texts` are done and a `fraction` of the input, from 0 to 1, has been read."""
        if not self._out.isatty() or self._clock() - self._shown < EVERY:
            return
        self._shown = self._clock()
        done = fraction - (self._skipped or 0.0)
        left = f", {clock_time(self.seconds * (1 - fraction) / done)} left" if texts and done > 0 else ""
        self._write(f"{texts:,} texts, {texts / self.seconds:,.0f} a second, {fraction:.0%}{left}")

    def tell(self, line: str) -> None:
        """Tells something in a line that stays, on a terminal or not."""
        self.end()
        print(line, file=self._out, flush=True)

    def end(self) -> None:
        """Clears the line."""
        if self._width:
            self._write("")
            self._out.write("\r")

    def _write(self, line: str) -> None:
        self._out.write("\r" + line.ljust(self._width))
        self._out.flush()
        self._width = len(line)


def clock_time(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 0:03:10."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
