"""Flags -> options that make sense together. Knows no services."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from selvage.bulk.files import FORMATS
from selvage.bulk.options import BulkOptions
from selvage.bulk.rows import Columns
from selvage.calls.streamed_call import BATCHES_AHEAD
from selvage.connection import TLS, Settings
from selvage.messages import enums
from selvage.v1 import vectors_pb2

EXAMPLES = """
examples:
  python -m selvage.bulk corpus/*.jsonl --output vectors --id-column doc_id
  python -m selvage.bulk corpus/*.jsonl --output vectors --engine BAAI/bge-base-en-v1.5 --engine-option device=cuda:0
  python -m selvage.bulk corpus.parquet --output vectors --text-column body --keep title,url --truncate
  python -m selvage.bulk lines.txt.gz --output vectors --format npy --outputs sparse --skip-errors
  python -m selvage.bulk 'mount/**/*.parquet' --output vectors --shard 0/4     (and 1/4, 2/4, 3/4 elsewhere)

Killed at any moment, the same command goes on where it was. docs/bulk.md tells more.
"""
RESERVED = ("row", "id", "tokens", "truncated", "dense", "sparse", "multi_vector")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line: a page of flags would hide it."""
        self.exit(2, f"{self.prog}: {message} (--help explains)\n")


def parse(arguments: Sequence[str]) -> BulkOptions:
    """Exits with status 2 and a line that names the flag where something makes no sense."""
    parser = _parser()
    given = parser.parse_args(arguments)
    columns = Columns(text=given.text_column, id=given.id_column, kept=_names(given.keep))
    twice = [name for name in columns.kept if columns.beside.count(name) > 1]
    if twice:
        parser.error(f"--keep: {twice[0]!r} is kept already")
    for name in columns.kept:
        if name in RESERVED or name.startswith(("dense_", "sparse_", "multi_vector_")):
            parser.error(f"--keep: the output has a column {name!r} of its own")
    if given.prompt is not None and given.prompt_name is not None:
        parser.error("--prompt and --prompt-name exclude each other")
    index, count = _share(parser, given.shard)
    return BulkOptions(
        inputs=given.input,
        input_format=given.input_format,
        columns=columns,
        keep_empty=given.keep_empty,
        skip_errors=given.skip_errors,
        output=given.output,
        format=given.format,
        rows_per_shard=given.rows_per_shard,
        index=index,
        count=count,
        restart=given.restart,
        vectors=_vectors(parser, given),
        services=_services(parser, given),
        engine=given.engine,
        engine_options=_engine_options(parser, given),
        batch_size=given.batch_size,
        in_flight=given.in_flight,
        patience=given.patience,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m selvage.bulk",
        description="Embeds files of texts into shards of vectors. It can be killed and started again at any time.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_input(parser.add_argument_group("input"), parser)
    _add_output(parser.add_argument_group("output"))
    _add_vectors(parser.add_argument_group("vectors, as Client.embed takes them"))
    _add_service(parser.add_argument_group("service"))
    return parser


def _add_input(group: Any, parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        nargs="+",
        metavar="INPUT",
        help="files, folders or patterns; the suffix tells the format: .jsonl .ndjson .csv .tsv .txt (also with .gz), "
        ".parquet; of .txt each line is a text",
    )
    group.add_argument("--input-format", choices=FORMATS, default="", help="of all inputs (default: by the suffix)")
    group.add_argument("--text-column", default="text", metavar="NAME", help="what is embedded (default: %(default)s)")
    group.add_argument("--id-column", default="", metavar="NAME", help="written beside each vector as `id`")
    group.add_argument("--keep", action="append", default=[], metavar="NAMES", help="columns to copy, by commas")
    group.add_argument("--keep-empty", action="store_true", help="embed empty texts (default: they are left out)")
    group.add_argument(
        "--skip-errors",
        action="store_true",
        help="list bad rows in _bad-*.jsonl and go on (default: the first one ends the command)",
    )
    group.add_argument(
        "--shard",
        default="0/1",
        metavar="I/N",
        help="do the shards I, I + N, I + 2 N ... of the output; N commands, from 0/N on, do all of it",
    )


def _add_output(group: Any) -> None:
    group.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="made if it is not there")
    group.add_argument("--format", choices=("parquet", "npy"), default="parquet", help="(default: %(default)s)")
    group.add_argument(
        "--rows-per-shard",
        type=_at_least(1),
        default=50_000,
        metavar="ROWS",
        help="of the input; a killed command repeats one shard at most (default: %(default)s)",
    )
    group.add_argument(
        "--restart",
        action="store_true",
        help="throw away what this command has written there, with whatever settings, inputs and model; commands that "
        "share the folder (--shard) must still fit together",
    )


def _add_vectors(group: Any) -> None:
    outputs = [each.replace("_", "-") for each in enums.names(vectors_pb2.OutputKind)]
    group.add_argument(
        "--outputs", default="dense", metavar="KINDS", help=f"of {', '.join(outputs)}; several by commas: one pass"
    )
    kinds = enums.names(vectors_pb2.DataType)
    group.add_argument("--data-type", choices=kinds, default="float32", help="(default: %(default)s)")
    group.add_argument("--dimensions", type=_at_least(1), help="leading ones to keep")
    group.add_argument("--input-type", choices=enums.names(vectors_pb2.InputType), help="for models that tell apart")
    group.add_argument("--prompt", help="put before each text")
    group.add_argument("--prompt-name", metavar="NAME", help="a prompt of the model's files")
    group.add_argument("--normalize", action=argparse.BooleanOptionalAction, help="(default: as the model's files say)")
    group.add_argument("--truncate", action="store_true", help="cut texts over the limit (default: they are bad rows)")
    group.add_argument("--truncation-side", choices=enums.names(vectors_pb2.TruncationSide))
    group.add_argument("--max-tokens", type=_at_least(1), help="a lower limit than the model's")
    group.add_argument("--sparse-top-k", type=_at_least(1), metavar="K", help="keep the K largest weights")
    group.add_argument("--pool-factor", type=float, metavar="F", help="keep about 1/F of a text's rows")
    group.add_argument("--protected-tokens", type=_at_least(0), metavar="N", help="rows that are not pooled")


def _add_service(group: Any) -> None:
    group.add_argument(
        "--target",
        action="append",
        metavar="HOST:PORT",
        help="a frontend, or dns:///name:port; several share the work, and one that dies loses nothing "
        "(default: 127.0.0.1:50051)",
    )
    group.add_argument(
        "--engine",
        default="",
        metavar="MODEL",
        help="no service, this process runs the model: a folder, a hub id or minilm (needs the extra engine)",
    )
    group.add_argument(
        "--engine-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the engine, as python -m gpu_worker --help has it with underscores, such as device=cuda:1",
    )
    group.add_argument("--model", default="", help="its name (default: the only one)")
    group.add_argument(
        "--key", default=os.environ.get("SELVAGE_KEY", ""), help="(default: SELVAGE_KEY of the environment)"
    )
    group.add_argument("--tls", action="store_true", help="by the authorities that gRPC trusts")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="PEM of who signs for the service")
    group.add_argument("--tls-certificate", type=Path, metavar="FILE", help="PEM of our own, with --tls-key")
    group.add_argument("--tls-key", type=Path, metavar="FILE")
    group.add_argument("--fairness-key", default="", metavar="NAME", help="the service serves keys evenly")
    group.add_argument("--priority", choices=("interactive", "default", "bulk"), default="bulk", help="(default: bulk)")
    group.add_argument("--batch-size", type=_at_least(1), default=64, help="texts of a message (default: %(default)s)")
    group.add_argument(
        "--in-flight", type=_at_least(1), default=BATCHES_AHEAD, help="batches of a target (default: %(default)s)"
    )
    group.add_argument(
        "--patience",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="to go on trying while no target answers (default: %(default)g)",
    )


def _vectors(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[str, Any]:
    known = enums.names(vectors_pb2.OutputKind)
    outputs = [each.replace("-", "_") for each in _names([given.outputs])]
    if not outputs or not {*outputs} <= {*known}:
        parser.error(
            f"--outputs is {given.outputs!r}, must be of {', '.join(each.replace('_', '-') for each in known)}"
        )
    return {
        "model": given.model,
        "outputs": list(dict.fromkeys(outputs)),
        "input_type": given.input_type,
        "prompt": given.prompt,
        "prompt_name": given.prompt_name,
        "dimensions": given.dimensions,
        "normalize": given.normalize,
        "data_type": given.data_type,
        "truncate": given.truncate,
        "truncation_side": given.truncation_side,
        "max_tokens": given.max_tokens,
        "sparse_top_k": given.sparse_top_k,
        "return_token_ids": False,
        "pool_factor": given.pool_factor,
        "protected_tokens": given.protected_tokens,
    }


def _services(parser: argparse.ArgumentParser, given: argparse.Namespace) -> list[Settings]:
    try:
        return [
            Settings.of(
                target,
                model=given.model,
                key="" if given.engine else given.key,
                tls=_tls(given),
                timeout=60.0,
                retries=0,
                in_flight=1,
                fairness_key=given.fairness_key,
                priority=given.priority,
                metadata=(),
            )
            for target in given.target or ["127.0.0.1:50051"]
        ]
    except ValueError as error:
        parser.error(f"--tls, --key or --fairness-key: {error}")
    except OSError as error:
        parser.error(f"--tls-ca, --tls-certificate or --tls-key: {error}")


def _engine_options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[str, str]:
    for flag in ("target", "tls", "tls_ca", "tls_certificate", "tls_key"):
        if given.engine and getattr(given, flag):
            parser.error(f"--engine and --{flag.replace('_', '-')} exclude each other")
    if given.engine_option and not given.engine:
        parser.error("--engine-option is for --engine")
    pairs = [each.partition("=") for each in given.engine_option]
    for name, sign, value in pairs:
        if not (name and sign and value):
            parser.error(f"--engine-option is {name + sign + value!r}, must be NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _tls(given: argparse.Namespace) -> TLS | bool:
    files = {"ca": given.tls_ca, "certificate": given.tls_certificate, "key": given.tls_key}
    found = {name: path.read_bytes() for name, path in files.items() if path is not None}
    return TLS(**found) if found else bool(given.tls)


def _share(parser: argparse.ArgumentParser, told: str) -> tuple[int, int]:
    index, slash, count = told.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        parser.error(f"--shard is {told!r}, must be I/N with I from 0 to N - 1")
    return int(index), int(count)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for each in given for name in each.split(",") if name)


def _at_least(least: int) -> Any:
    def number(value: str) -> int:
        if not value.isdecimal() or int(value) < least:
            raise argparse.ArgumentTypeError(f"{value!r} is no number from {least} on")
        return int(value)

    return number
