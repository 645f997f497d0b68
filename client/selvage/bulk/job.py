"""The whole work: reads blocks of rows, has them embedded, writes them in order; continues after an earlier command."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selvage.bulk.arrow import pyarrow
from selvage.bulk.batch_queue import BatchQueue
from selvage.bulk.failures import Failed
from selvage.bulk.files import InputFile, find_inputs, identity_of
from selvage.bulk.input_reader import InputReader, check_inputs
from selvage.bulk.manifest import Manifest, lock
from selvage.bulk.meter import EVERY, Meter
from selvage.bulk.npy import NpyShard
from selvage.bulk.options import BulkOptions
from selvage.bulk.plan import RowPlan
from selvage.bulk.row_blocks import row_blocks
from selvage.bulk.service import BulkService
from selvage.bulk.shards import ShardFiles, Shards, published_files, remove_drafts
from selvage.bulk.targets import card_of, running_targets
from selvage.model_card import ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Numbers of what was done: `rows`, `empty` and `bad` ones in all shards, `texts` by this command in `seconds`."""

    rows: int
    empty: int
    bad: int
    shards: int
    texts: int
    seconds: float


def run(options: BulkOptions, services: Sequence[BulkService], meter: Meter) -> Summary:
    """Does what is left to do. Raises Failed; finished shards stay."""
    files = find_inputs(options.inputs, options.input_format, options.output)
    check_inputs(files, options.columns)
    types = _extra_types(options, files)
    if options.format == "parquet":
        pyarrow("--format parquet")  # a service may have to be waited for; what is missing is told before
    card = card_of(services, options.patience, meter.tell)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        locked = lock(options.manifest_path)
    except OSError as error:
        raise Failed(f"--output: {options.output} cannot be used: {error.strerror}") from error
    with locked:
        manifest = _begin(options, files, card)
        shards = Shards(options.output, manifest, _opener(options, types), skip_errors=options.skip_errors)
        done = manifest.input_rows is not None
        texts = 0 if done else _embed(options, files, services, card.fingerprint, shards, meter)
        finished = manifest.shards.values()
        return Summary(
            rows=sum(shard.rows for shard in finished),
            empty=sum(shard.empty for shard in finished),
            bad=sum(shard.bad for shard in finished),
            shards=len(finished),
            texts=texts,
            seconds=meter.seconds,
        )


def _opener(options: BulkOptions, types: dict[str, object]) -> Callable[[Path, str], ShardFiles]:
    """A function that opens the files of a shard in the format of the options."""

    def open_files(folder: Path, name: str) -> ShardFiles:
        if options.format == "npy":
            return NpyShard(folder, name, options.extra_names)
        from selvage.bulk.parquet_output import ParquetShard

        return ParquetShard(folder, name, options.extra_names, types)

    return open_files


def _embed(
    options: BulkOptions,
    files: list[InputFile],
    services: Sequence[BulkService],
    fingerprint: str,
    shards: Shards,
    meter: Meter,
) -> int:
    """Embeds and writes the rows that are left; returns the number of texts that have an outcome. Raises Failed."""
    plan = RowPlan(
        rows_per_shard=options.rows_per_shard,
        index=options.index,
        count=options.count,
        finished=shards.finished,
    )
    queue = BatchQueue(
        batch_size=options.batch_size,
        letters=options.letters,
        in_flight=options.in_flight,
        patience=options.patience,
        has_ids=bool(options.columns.id),
    )
    reader = InputReader(files, options.columns, plan, lambda: meter.show(queue.answered_texts, reader.fraction_read))
    writer = _BlockWriter(queue, shards, reader, meter)
    with running_targets(services, options.template, fingerprint, queue, meter.tell), _cleaned(shards):
        for block in row_blocks(reader, plan, most=options.block_rows, keep_empty=options.keep_empty):
            writer.begin()
            while queue.open_blocks > len(services):
                writer.write_oldest()
            queue.add_block(block)
        while queue.open_blocks:
            writer.write_oldest()
        shards.complete(reader.total)
    return queue.answered_texts


class _BlockWriter:
    """Writes blocks in order as they are embedded, and shows how far the work is."""

    def __init__(self, queue: BatchQueue, shards: Shards, reader: InputReader, meter: Meter) -> None:
        self._queue, self._shards, self._reader, self._meter = queue, shards, reader, meter
        self._begun = False

    def begin(self) -> None:
        """Starts the meter when the first block was read."""
        if not self._begun:
            self._meter.begin(self._reader.fraction_read)
            self._begun = True

    def write_oldest(self) -> None:
        """Waits until the oldest block is embedded, and writes it."""
        while (block := self._queue.take_oldest_block(EVERY)) is None:
            self._show()
        self._shards.add_block(block)
        self._show()

    def _show(self) -> None:
        self._meter.show(self._queue.answered_texts, self._reader.fraction_read)


@contextmanager
def _cleaned(shards: Shards) -> Iterator[None]:
    """Removes the files of a shard that is not whole at the end."""
    try:
        yield
    finally:
        shards.discard()


def _begin(options: BulkOptions, files: list[InputFile], card: ModelCard) -> Manifest:
    """Reads an earlier command's manifest, or writes a new one, and removes files that none names. Raises Failed."""

    def is_ours(shard: int) -> bool:
        return shard % options.count == options.index

    origin = {
        "settings": options.settings_by_flag,
        "inputs": [identity_of(file) for file in files],
        "model": {"id": card.id, "fingerprint": card.fingerprint},
    }
    try:
        earlier = None if options.restart else Manifest.of_earlier_command(options.manifest_path, origin)
        manifest = earlier or Manifest(options.manifest_path, origin)
        manifest.check_others()
        remove_drafts(options.output, is_ours)
        unnamed = published_files(options.output, lambda shard: is_ours(shard) and shard not in manifest.shards)
        if earlier is None:
            if unnamed and not options.restart:
                fault = f"--output: {options.output} holds {unnamed[0].name}, which no manifest names"
                raise Failed(f"{fault}; take another folder, or throw such files away with --restart")
            _publish(manifest)  # before files are removed, so that no manifest names a removed file
        for path in unnamed:  # of a command that was killed before its manifest named them, or was begun anew
            path.unlink()
    except OSError as error:
        raise Failed(f"--output: {options.output} cannot be written: {error.strerror or error}") from error
    return manifest


def _publish(manifest: Manifest) -> None:
    """Writes a new manifest, and checks the others once more. Raises Failed, and OSError.

    So of two commands that begin at the same time and do not fit together, at least one sees the other's manifest.
    """
    manifest.save()
    try:
        manifest.check_others()
    except Failed:
        manifest.remove()
        raise


def _extra_types(options: BulkOptions, files: list[InputFile]) -> dict[str, object]:
    """The Arrow types of extra columns, by their name in the output; none unless inputs and output are Parquet."""
    if options.format != "parquet" or any(file.format != "parquet" for file in files):
        return {}
    from selvage.bulk.column_types import types_of

    types = types_of([file.path for file in files], options.columns.extra)
    return {("id" if name == options.columns.id else name): kind for name, kind in types.items()}
