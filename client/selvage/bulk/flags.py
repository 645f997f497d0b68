"""The command line -> options that make sense together. Knows no services."""

import argparse
import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from selvage.bulk.arrow_columns import OPTIONS
from selvage.bulk.reader import Columns
from selvage.bulk.sender import IN_FLIGHT
from selvage.connection import DEFAULT, TLS, Settings, check_target
from selvage.messages.options import DEFAULTS, ENUMS, VectorOptions, enum_names, explanations
from selvage.v1 import vectors_pb2

EXAMPLES = """
examples:
  python -m selvage.bulk corpus/*.jsonl --output vectors --id-column doc_id
  python -m selvage.bulk corpus/*.jsonl --output vectors --engine BAAI/bge-base-en-v1.5 --engine-option device=cuda:0
  python -m selvage.bulk corpus.parquet --output vectors --text-column body --keep title,url --truncate
  python -m selvage.bulk lines.txt.gz --output vectors --outputs sparse --skip-errors
  python -m selvage.bulk 'mount/**/*.parquet' --output vectors/0 --shard 0/4   (1/4, 2/4, 3/4 elsewhere)

Killed at any moment, the same command goes on where it was. docs/bulk.md tells more.
"""
KEY_VARIABLE = "SELVAGE_KEY"
"""The environment variable that holds the API key."""
RESERVED = ("row", "id", "tokens", "truncated", "dense", "sparse", "multi_vector")
"""Names of the output's own columns."""


class BulkOptions(argparse.Namespace):
    """All options of the command: its flags, and what `parse` makes of them.

    `index` and `count`: the I and N of `--shard`. `vectors`: the options of `Client.embed`. `targets`: addresses,
    `connection`: the other options of `Client`. `engine`: the model that this process runs instead, with
    `engine_options`.
    """

    inputs: Sequence[str]
    columns: Columns
    keep_empty: bool
    skip_errors: bool
    output: Path
    rows_per_shard: int
    index: int
    count: int
    restart: bool
    vectors: dict[str, Any]
    targets: Sequence[str]
    connection: dict[str, Any]
    engine: str
    engine_options: dict[str, Any]
    batch_size: int
    in_flight: int
    patience: float

    @property
    def settings_by_flag(self) -> dict[str, Any]:
        """Everything that the output depends on, by the name of its flag."""
        settings = {
            "text-column": self.columns.text,
            "id-column": self.columns.id,
            "keep": list(self.columns.copied),
            "keep-empty": self.keep_empty,
            "rows-per-shard": self.rows_per_shard,
            "shard": f"{self.index}/{self.count}",
            "model": self.connection["model"],
            "outputs": self.vectors["output"],
            **{name: value for name, value in self.vectors.items() if name != "output"},
        }
        return {f"--{name.replace('_', '-')}": value for name, value in settings.items()}


def parse(command_line: Sequence[str]) -> BulkOptions:
    """Parses the command line. A flag that makes no sense ends the process with a line that names it, and status 2."""
    parser = _parser()
    options = parser.parse_args(command_line, BulkOptions())
    columns = options.columns = Columns(text=options.text_column, id=options.id_column, copied=_names(options.keep))
    for name in columns.copied:
        if columns.extra.count(name) > 1:
            parser.error(f"--keep: {name!r} is kept already")
        if name in RESERVED or name.startswith(("dense_", "sparse_", "multi_vector_")):
            parser.error(f"--keep: the output has a column {name!r} of its own")
    if options.prompt is not None and options.prompt_name is not None:
        parser.error("--prompt and --prompt-name exclude each other")
    options.index, options.count = _shard(parser, options.shard)
    options.vectors = _vectors(parser, options)
    options.targets = options.target or [DEFAULT]
    options.connection = _connection(parser, options)
    options.engine_options = _engine_options(parser, options)
    return options


def _parser() -> "_Parser":
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
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="files, folders or patterns; the suffix tells the format: .jsonl .ndjson .csv .tsv .txt (also with .gz), "
        ".parquet; of .txt each line is a text",
    )
    group.add_argument(
        "--text-column", default="text", metavar="NAME", help="the column to embed (default: %(default)s)"
    )
    group.add_argument("--id-column", default="", metavar="NAME", help="written beside each vector as `id`")
    group.add_argument(
        "--keep", action="append", default=[], metavar="NAMES", help="columns to copy, separated by commas"
    )
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
        help="do the shards I, I + N, I + 2 N ... of the output; N commands, from 0/N on, do all of it, each with its "
        "own folder",
    )


def _add_output(group: Any) -> None:
    group.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="made if it is not there")
    group.add_argument(
        "--rows-per-shard",
        type=_at_least(1),
        default=50_000,
        metavar="ROWS",
        help="rows of the input in a shard; a killed command repeats one shard at most (default: %(default)s)",
    )
    group.add_argument(
        "--restart",
        action="store_true",
        help="throw away what this command has written there, with whatever settings, inputs and model",
    )


def _add_vectors(group: Any) -> None:
    """The flags of the vectors: a list of outputs, and the options of `Client.embed`, each explained as it is there."""
    outputs = ", ".join(_outputs())
    group.add_argument("--outputs", default="dense", metavar="KINDS", help=f"any of {outputs}, separated by commas")
    kinds, meanings = get_type_hints(VectorOptions), explanations(VectorOptions)
    for name in OPTIONS:
        options: dict[str, Any] = {"help": meanings[name]}
        if name in ENUMS:
            options |= {"choices": enum_names(ENUMS[name]), "default": DEFAULTS.get(name)}
        elif name == "truncate":
            options |= {"action": "store_true", "help": "cut texts over the limit (default: they are bad rows)"}
        elif bool in get_args(kinds[name]):
            options["action"] = argparse.BooleanOptionalAction
        elif int in get_args(kinds[name]):
            options["type"] = _at_least(0 if name == "protected_tokens" else 1)
        else:
            options["type"] = get_args(kinds[name])[0]
        group.add_argument(f"--{name.replace('_', '-')}", **options)


def _outputs() -> list[str]:
    return [name.replace("_", "-") for name in enum_names(vectors_pb2.OutputKind)]


def _add_service(group: Any) -> None:
    group.add_argument(
        "--target",
        action="append",
        metavar="HOST:PORT",
        help="a frontend, or dns:///name:port; several share the work, and one that dies loses nothing "
        f"(default: {DEFAULT})",
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
        help="an option of the engine: a flag of python -m gpu_worker, with underscores, such as device=cuda:1",
    )
    group.add_argument("--model", default="", help="the model's name (default: the only one)")
    group.add_argument(
        "--key", default=os.environ.get(KEY_VARIABLE, ""), help=f"(default: {KEY_VARIABLE} of the environment)"
    )
    group.add_argument("--tls", action="store_true", help="connect by TLS; gRPC's authorities are trusted")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="PEM of the authorities to trust instead")
    group.add_argument("--tls-certificate", type=Path, metavar="FILE", help="PEM of the client's own, with --tls-key")
    group.add_argument("--tls-key", type=Path, metavar="FILE")
    group.add_argument("--fairness-key", default="", metavar="NAME", help="the service serves keys evenly")
    group.add_argument("--batch-size", type=_at_least(1), default=64, help="texts in a message (default: %(default)s)")
    group.add_argument(
        "--in-flight", type=_at_least(1), default=IN_FLIGHT, help="messages ahead of replies (default: %(default)s)"
    )
    group.add_argument(
        "--patience",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long to go on trying while no target answers (default: %(default)g)",
    )


def _vectors(parser: argparse.ArgumentParser, options: BulkOptions) -> dict[str, Any]:
    """The options of the vectors, as `Client.embed` takes them."""
    outputs = [name.replace("-", "_") for name in _names([options.outputs])]
    if not outputs or not {*outputs} <= {*enum_names(vectors_pb2.OutputKind)}:
        parser.error(f"--outputs is {options.outputs!r}, must be of {', '.join(_outputs())}")
    return {"output": list(dict.fromkeys(outputs)), **{name: getattr(options, name) for name in OPTIONS}}


def _connection(parser: argparse.ArgumentParser, options: BulkOptions) -> dict[str, Any]:
    """The options of the clients of all targets."""
    for target in options.target or ():
        try:
            check_target(target, tls=bool(options.tls or options.tls_ca or options.tls_certificate))
        except ValueError as error:
            parser.error(f"--target: {error}")
    try:
        connection = {
            "model": options.model,
            "key": options.key,
            "tls": _tls(options),
            "fairness_key": options.fairness_key,
            "priority": "bulk",
        }
        Settings(**connection)  # checks them; the clients of the targets warn of keys in plain text
    except ValueError as error:
        parser.error(f"--tls, --key or --fairness-key: {error}")
    except OSError as error:
        parser.error(f"--tls-ca, --tls-certificate or --tls-key: {error}")
    return connection


def _engine_options(parser: argparse.ArgumentParser, options: BulkOptions) -> dict[str, str]:
    for flag in ("target", "tls", "tls_ca", "tls_certificate", "tls_key"):
        if options.engine and getattr(options, flag):
            parser.error(f"--engine and --{flag.replace('_', '-')} exclude each other")
    if options.engine_option and not options.engine:
        parser.error("--engine-option is for --engine")
    pairs = [option.partition("=") for option in options.engine_option]
    for name, sign, value in pairs:
        if not (name and sign and value):
            parser.error(f"--engine-option is {name + sign + value!r}, must be NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _tls(options: BulkOptions) -> TLS | bool:
    files = {"ca": options.tls_ca, "certificate": options.tls_certificate, "key": options.tls_key}
    contents = {name: path.read_bytes() for name, path in files.items() if path is not None}
    return TLS(**contents) if contents else bool(options.tls)


def _shard(parser: argparse.ArgumentParser, shard: str) -> tuple[int, int]:
    """The I and N of `--shard I/N`."""
    index, slash, count = shard.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        parser.error(f"--shard is {shard!r}, must be I/N with I from 0 to N - 1")
    return int(index), int(count)


def _names(values: Sequence[str]) -> tuple[str, ...]:
    """Names that are separated by commas, of a flag that may be repeated."""
    return tuple(name for value in values for name in value.split(",") if name)


def _at_least(least: int) -> Any:
    """A function that parses a whole number, which must be at least `least`."""

    def number(value: str) -> int:
        if not value.isdecimal() or int(value) < least:
            raise argparse.ArgumentTypeError(f"{value!r} is no number from {least} on")
        return int(value)

    return number


class _Parser(argparse.ArgumentParser):
    """A parser that refuses in one line. `shared.command.CommandParser` is its twin, which this package cannot see."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """See `argparse.ArgumentParser`. Looks for unknown flags first: a missing one may be one that is misspelt."""
        for word in args or ():
            flag = word.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and " " not in flag and flag not in self._option_string_actions:
                near = difflib.get_close_matches(flag, self._option_string_actions, n=1)
                self.error(f"unrecognized arguments: {flag}{f'; did you mean {near[0]}?' if near else ''}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints one line, because a page of flags would hide it, and exits with status 2."""
        self.exit(2, f"{self.prog}: {message} (--help explains)\n")
