"""The whole work: reads tables of rows, has them embedded, writes them in order; continues after an earlier command."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from selvage.bulk.failures import Failed
from selvage.bulk.files import InputFile, find_inputs, identity_of
from selvage.bulk.flags import BulkOptions
from selvage.bulk.manifest import Manifest, lock
from selvage.bulk.meter import EVERY, Meter
from selvage.bulk.reader import NUMBERS, Reader, RowPlan, check_inputs
from selvage.bulk.sender import Sender, Target, Work, card_of
from selvage.bulk.shards import Shards, published_files, remove_drafts
from selvage.bulk.vectors import pyarrow
from selvage.model_card import ModelCard

TABLE_ROWS = {"dense": 4096, "sparse": 4096, "multi_vector": 512}
"""Rows of a table by output: thousands, so that messages have texts of like length; fewer where tokens have vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Numbers of what was done: `rows`, `empty` and `bad` ones in all shards, `texts` by this command in `seconds`."""

    rows: int
    empty: int
    bad: int
    shards: int
    texts: int
    seconds: float


def run(options: BulkOptions, connect: Callable[[], Sequence[Target]], meter: Meter) -> Summary:
    """Does what is left to do. `connect`: makes the targets, once the inputs are known to be usable.

    Raises Failed; finished shards stay.
    """
    pyarrow("the command")
    files = find_inputs(options.inputs, options.input_format, options.output)
    schema = check_inputs(files, options.columns)
    targets = connect()
    card = card_of(targets, options.patience, meter.tell)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        locked = lock(options.manifest_path)
    except OSError as error:
        raise Failed(f"--output: {options.output} cannot be used: {error.strerror}") from error
    with locked:
        manifest = _begin(options, files, card)
        done = manifest.input_rows is not None
        texts = 0 if done else _embed(options, files, schema, targets, card.fingerprint, manifest, meter)
        finished = manifest.shards.values()
        return Summary(
            rows=sum(shard.rows for shard in finished),
            empty=sum(shard.empty for shard in finished),
            bad=sum(shard.bad for shard in finished),
            shards=len(finished),
            texts=texts,
            seconds=meter.seconds,
        )


def _embed(
    options: BulkOptions,
    files: Sequence[InputFile],
    schema: Any,
    targets: Sequence[Target],
    fingerprint: str,
    manifest: Manifest,
    meter: Meter,
) -> int:
    """Embeds and writes the rows that are left; returns the number of texts that have an outcome. Raises Failed."""
    plan = RowPlan(
        rows_per_shard=options.rows_per_shard,
        index=options.index,
        count=options.count,
        finished=frozenset(manifest.shards),
    )

    def show() -> None:
        meter.show(sender.answered, reader.fraction_read)

    reader = Reader(files, options.columns, schema, plan, show)
    shards = Shards(
        options.output,
        manifest,
        rows_per_shard=options.rows_per_shard,
        skip_errors=options.skip_errors,
        has_ids=bool(options.columns.id),
        place_of=reader.place_of,
    )
    sender = Sender(
        targets,
        options.vectors,
        fingerprint=fingerprint,
        message_texts=options.batch_size,
        in_flight=options.in_flight,
        patience=options.patience,
    )
    under_way: deque[tuple[Any, Work]] = deque()

    def write_oldest() -> None:
        """Waits until the oldest table is embedded, and writes it."""
        table, work = under_way[0]
        while not sender.wait(work, EVERY):
            show()
        under_way.popleft()
        shards.add_rows(_beside_vectors(options, table), work.reasons, work.table())
        show()

    most = min(TABLE_ROWS[output] for output in options.vectors["output"])
    with _closed(sender, shards):
        for table in reader.tables(most):
            meter.begin(reader.fraction_read)
            while len(under_way) > len(targets):
                write_oldest()
            work = Work(_values(table[options.columns.text]), options.columns.text, keep_empty=options.keep_empty)
            under_way.append((table, work))
            sender.submit(work)
        while under_way:
            write_oldest()
        shards.complete(reader.total)
    return sender.answered


@contextmanager
def _closed(sender: Sender, shards: Shards) -> Iterator[None]:
    """Ends what is under way, and removes the files of a shard that is not whole."""
    try:
        yield
    finally:
        sender.close()
        shards.discard()


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
