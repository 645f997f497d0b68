"""The whole work: reads windows, has them answered, writes them in order; goes on where an earlier command ended."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selvage.bulk.batch_queue import Board
from selvage.bulk.failures import Failed
from selvage.bulk.files import InputFile, find, fingerprint
from selvage.bulk.input_reader import InputReading, check
from selvage.bulk.manifest import Manifest, lock
from selvage.bulk.meter import EVERY, Meter
from selvage.bulk.npy import NpyShard
from selvage.bulk.options import BulkOptions
from selvage.bulk.plan import RowPlan
from selvage.bulk.row_blocks import windows
from selvage.bulk.service import BulkService
from selvage.bulk.shards import Output, Shards, published, sweep
from selvage.bulk.targets import card_of, targets
from selvage.model_card import ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`rows`, `empty`, `bad`: of all shards; `texts`: embedded by this command in `seconds`."""

    rows: int
    empty: int
    bad: int
    shards: int
    texts: int
    seconds: float


def run(options: BulkOptions, services: Sequence[BulkService], meter: Meter) -> Summary:
    """Does what is left to do. Raises Failed; what is finished stays."""
    files = find(options.inputs, options.input_format, options.output)
    check(files, options.columns)
    types = _types(options, files)
    card = card_of(services, options.patience)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        held = lock(options.manifest)
    except OSError as error:
        raise Failed(f"--output: {options.output} cannot be used: {error.strerror}") from error
    with held:
        manifest = _begin(options, files, card)

        def output(folder: Path, name: str) -> Output:
            if options.format == "npy":
                return NpyShard(folder, name, options.names)
            from selvage.bulk.parquet_output import ParquetShard

            return ParquetShard(folder, name, options.names, types)

        shards = Shards(options.output, manifest, output, skip_errors=options.skip_errors)
        done = manifest.input_rows is not None
        texts = 0 if done else _embed(options, files, services, card.fingerprint, shards, meter)
        found = manifest.shards.values()
        return Summary(
            rows=sum(each.rows for each in found),
            empty=sum(each.empty for each in found),
            bad=sum(each.bad for each in found),
            shards=len(found),
            texts=texts,
            seconds=meter.seconds,
        )


def _embed(
    options: BulkOptions,
    files: list[InputFile],
    services: Sequence[BulkService],
    fingerprint_: str,
    shards: Shards,
    meter: Meter,
) -> int:
    """Texts that were answered."""
    plan = RowPlan(
        rows_per_shard=options.rows_per_shard,
        index=options.index,
        count=options.count,
        finished=shards.finished,
    )
    board = Board(
        batch_size=options.batch_size,
        letters=options.letters,
        in_flight=options.in_flight,
        patience=options.patience,
        has_ids=bool(options.columns.id),
    )
    reading = InputReading(files, options.columns, plan, lambda: meter.tell(board.answered, reading.share))
    flow = _Flow(board, shards, reading, meter)
    with targets(services, options.template, fingerprint_, board), _cleaned(shards):
        for window in windows(reading, plan, most=options.window_rows, keep_empty=options.keep_empty):
            flow.begin()
            while board.open > len(services):
                flow.write()
            board.add(window)
        while board.open:
            flow.write()
        shards.complete(reading.total)
    return board.answered


class _Flow:
    """Windows that are under way, and how far they are."""

    def __init__(self, board: Board, shards: Shards, reading: InputReading, meter: Meter) -> None:
        self._board, self._shards, self._reading, self._meter = board, shards, reading, meter
        self._begun = False

    def begin(self) -> None:
        """A window was read."""
        if not self._begun:
            self._meter.begin(self._reading.share)
            self._begun = True

    def write(self) -> None:
        """The oldest window, once it is answered."""
        while (window := self._board.oldest(EVERY)) is None:
            self._tell()
        self._shards.add(window)
        self._tell()

    def _tell(self) -> None:
        self._meter.tell(self._board.answered, self._reading.share)


@contextmanager
def _cleaned(shards: Shards) -> Iterator[None]:
    """A shard that is not whole leaves nothing behind."""
    try:
        yield
    finally:
        shards.discard()


def _begin(options: BulkOptions, files: list[InputFile], card: ModelCard) -> Manifest:
    """What an earlier command has finished; a manifest is there from now on. Raises Failed."""

    def mine(shard: int) -> bool:
        return shard % options.count == options.index

    told = {
        "settings": options.told,
        "inputs": [fingerprint(each) for each in files],
        "model": {"id": card.id, "fingerprint": card.fingerprint},
    }
    try:
        begun = None if options.restart else Manifest.begun(options.manifest, told)
        manifest = begun or Manifest(options.manifest, told)
        manifest.check_others()
        sweep(options.output, mine)
        unnamed = published(options.output, lambda shard: mine(shard) and shard not in manifest.shards)
        if begun is None:
            if unnamed and not options.restart:
                told_of = f"--output: {options.output} holds {unnamed[0].name}, which no manifest names"
                raise Failed(f"{told_of}; take another folder, or throw such files away with --restart")
            _publish(manifest)  # before files go: none of them is believed any more
        for path in unnamed:  # of a command that was killed before its manifest named them, or of one begun anew
            path.unlink()
    except OSError as error:
        raise Failed(f"--output: {options.output} cannot be written: {error.strerror or error}") from error
    return manifest


def _publish(manifest: Manifest) -> None:
    """Of two commands that begin at the same time and do not fit together, at least one sees the other's now. Raises
    Failed, and OSError."""
    manifest.save()
    try:
        manifest.check_others()
    except Failed:
        manifest.withdraw()
        raise


def _types(options: BulkOptions, files: list[InputFile]) -> dict[str, object]:
    """Of columns beside the texts, where Parquet tells them; by their name in the output."""
    if options.format != "parquet" or any(each.format != "parquet" for each in files):
        return {}
    from selvage.bulk.column_types import types_of

    found = types_of([each.path for each in files], options.columns.beside)
    return {("id" if name == options.columns.id else name): kind for name, kind in found.items()}
