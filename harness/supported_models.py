"""The supported models: how each text architecture of the installed transformers is served, for docs/models.md.

`python -m harness.supported_models` writes the page's table anew; with model types it prints theirs.

Each architecture is built tiny with seeded random weights, written to disk, and loaded as a user's model would be. The
gate at load decides how it runs.
"""

from shared.command import CommandParser, begin

if __name__ == "__main__":
    begin("worker")

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import __version__ as transformers_version

from gpu_worker.device.placement import Placement
from gpu_worker.model.loading import load
from gpu_worker.model.source import quiet
from gpu_worker.model.verify.piece_check import TWO_SIDED, UNPACKED
from gpu_worker.repository.files import first_line
from harness.environment import ROOT
from harness.random_models import miniature
from shared.errors import ModelRefused

RUNS = PACKED, EQUAL_LENGTH, REFUSED = "packed", "equal length", "refused"
IN_PIECES = "in pieces"
CPU = Placement(device=torch.device("cpu"), dtype=torch.float32)
WIDEST = 160
"""Most letters of a reason in the table."""
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- made by make models: begin -->", "<!-- made by make models: end -->"
"""The lines of the page between which everything is made; what stands around them is written by hand."""
TABLE = """
With transformers {version} there are {all} model types: {packed} run packed, {equal} by equal length, {refused} are
refused. Long texts of {pieces} are computed in pieces. The layers of {whole} run whole by the kernels of the worker.

| runs | long texts | by our kernels | why not packed | model types |
|---|---|---|---|---|
{rows}

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedModel:
    """How one model type is served.

    `runs`: packed, in equal lengths or refused. `long_texts`: in pieces, or why not, empty where this is plain from the
    kind of model. `by_kernels`: whether it runs whole by the processor's kernels. `why` it is not packed.
    """

    kind: str
    runs: str
    long_texts: str = ""
    by_kernels: bool = False
    why: str = ""


def try_model_type(kind: str) -> SupportedModel:
    """Builds, writes and loads a tiny model of a type, to see how it is served."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        try:
            with quiet():
                miniature.write(path, kind)
        except Exception as error:  # transformers' own code
            why = f"transformers cannot build it: {first_line(error)}"
            return SupportedModel(kind=kind, runs=REFUSED, why=why)
        try:
            model = load(folder, CPU)
        except ModelRefused as error:
            return SupportedModel(kind=kind, runs=REFUSED, why=str(error).replace(f"{folder}: ", ""))
    return SupportedModel(
        kind=kind,
        runs=EQUAL_LENGTH if model.encoder.unpacked_reason else PACKED,
        long_texts=_long_texts(model.whole_texts),
        by_kernels=bool(model.native_layers),
        why=model.encoder.unpacked_reason,
    )


def _long_texts(whole: str) -> str:
    """How long texts are computed, for the table. `whole`: why not in pieces, empty where they are."""
    return "" if whole in (UNPACKED, TWO_SIDED) else whole or IN_PIECES


def try_model_types(kinds: list[str]) -> Iterator[SupportedModel]:
    """Tries the model types, with progress on standard error, since all of them take minutes."""
    for number, kind in enumerate(kinds, 1):
        print(f"\r{number}/{len(kinds)} {kind:40}", end="", file=sys.stderr, flush=True)
        yield try_model_type(kind)
    print(file=sys.stderr)


def page(text: str, models: list[SupportedModel]) -> str:
    """Puts the counts and the table of the models into the text of the page."""
    counts = [sum(model.runs == runs for model in models) for runs in RUNS]
    kinds_of: dict[tuple[str, ...], list[str]] = {}
    for model in models:
        cells = (model.runs, _cell(model.long_texts), "yes" * model.by_kernels, _cell(model.why))
        kinds_of.setdefault(cells, []).append(f"`{model.kind}`")
    order = sorted(kinds_of, key=lambda cells: (RUNS.index(cells[0]), -len(kinds_of[cells])))
    rows = "\n".join(f"| {' | '.join(cells)} | {', '.join(kinds_of[cells])} |" for cells in order)
    table = TABLE.format(
        version=transformers_version,
        all=len(models),
        packed=counts[0],
        equal=counts[1],
        refused=counts[2],
        pieces=sum(model.long_texts == IN_PIECES for model in models),
        whole=sum(model.by_kernels for model in models),
        rows=rows,
    )
    before, _, after = text.partition(BEGIN)
    return f"{before}{BEGIN}{table}{END}{after.partition(END)[2]}"


def listed(text: str) -> dict[str, SupportedModel]:
    """Reads the table of the page, by model type in the order of the alphabet."""
    models = [
        SupportedModel(kind=kind, runs=runs, long_texts=long_texts, by_kernels=by_kernels == "yes", why=why)
        for line in text.partition(BEGIN)[2].partition(END)[0].splitlines()
        if line.count(" | ") == 4 and line.startswith(tuple(f"| {runs} |" for runs in RUNS))
        for runs, long_texts, by_kernels, why, kinds in [[cell.strip() for cell in line.strip("|").split("|")]]
        for kind in kinds.replace("`", "").split(", ")
    ]
    return {model.kind: model for model in sorted(models, key=lambda model: model.kind)}


def _cell(why: str) -> str:
    """Writes a reason as one cell of the table, without what differs between machines or models of one reason: figures,
    and the name of the class that it begins with."""
    line = re.sub(r"(differ by|noise is) [\d.e+-]+", r"\1 ...", why).replace("|", "/")
    line = re.sub(r"^[A-Z]\w+(\.forward|:)? (?=fails|cannot|runs|a text)", "", line)
    return line if len(line) <= WIDEST else f"{line[:WIDEST]}..."


if __name__ == "__main__":
    parser = CommandParser(
        prog="python -m harness.supported_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model_type", nargs="*", help="of transformers' config.json; default: all, and the page is written"
    )
    kinds = parser.parse_args().model_type
    written = page(PAGE.read_text(), list(try_model_types(kinds or list(miniature.model_types()))))
    if kinds:
        print(written.partition(BEGIN)[2].partition(END)[0].strip())
    else:
        PAGE.write_text(written)
