"""Measures one thing, writes one JSON, prints one table.

python -m benchmarks engine --quick                     shows that it works; the figures mean little
python -m benchmarks services --against ../before       two checkouts in turns, in one run
python -m benchmarks load --target 127.0.0.1:50051 --clients 64 --deadline 2     drives services that run
python -m benchmarks render                             the tables of README.md and of docs
"""

import argparse
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import result
from benchmarks.published.rows import rows
from benchmarks.workloads import MINILM, SHAPES, named

ROUNDS = {
    "offline": (2, 2),
    "engine": (3, 1),
    "maxsim": (4, 1),
    "services": (3, 1),
    "bulk": (3, 1),
    "overload": (1, 1),
    "rankings": (1, 1),
    "frontends": (1, 1),
    "host": (3, 1),
    "states": (5, 1),
    "latency": (3, 1),
    "published": (3, 1),
}
"""Default rounds in each start, and starts, by benchmark."""
COMPARED, SHAPED, OF_ROWS = ("engine", "services", "host"), "offline", "published"
"""Benchmarks that can compare with other checkouts; the one with a choice of models; the one with rows."""
SCALES = ("tiny", "small", "full")
COMMANDS = ("load", "accelerator", "render")
"""Commands that have flags of their own."""
MODULES = {"load": "load.generator", "accelerator": "accelerator.run", "published": "published.run"}
"""Modules of the names that are packages."""


def module_of(name: str) -> str:
    """Names the module of a benchmark or command."""
    return f"benchmarks.{MODULES.get(name, name)}"


def words(module: str) -> str:
    """Reads a module's docstring without importing it, since some need packages that may be missing."""
    path = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    return path.read_text().split('"""')[1]


def parser() -> argparse.ArgumentParser:
    """Builds the parser of all commands."""
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=raw)
    names = made.add_subparsers(dest="name", metavar="NAME")
    flags = {}
    for name in (*ROUNDS, *COMMANDS):
        says = words(module_of(name))
        flags[name] = names.add_parser(name, help=says.splitlines()[0], description=says, formatter_class=raw)
    for name, (rounds, starts) in ROUNDS.items():
        add = flags[name].add_argument
        add("--quick", action="store_true", help="one round of one second: shows that it works; writes no JSON")
        add("--threads", type=int, default=2, help="of every side (default: %(default)s)")
        add("--rounds", type=int, default=rounds, help="each has every side once (default: %(default)s)")
        add("--starts", type=int, default=starts, help="everybody anew, with the rounds in each (default: %(default)s)")
        loads = "of a load in a round: services, overload, frontends, latency (%(default)s)"
        add("--seconds", type=float, default=2.5, help=loads)
        if name == SHAPED:
            shapes, says = [MINILM, *SHAPES], "the model; others have random weights (%(default)s)"
            add("--shape", choices=shapes, default=MINILM, help=says)
        if name == OF_ROWS:
            add("--row", action="append", choices=list(rows()), help="one row; may be repeated (default: all)")
        if name in COMPARED:
            add("--against", action="append", metavar="PATH", help="another checkout; or infinity (services)")
        flags[name].set_defaults(against=[], row=[], shape=MINILM, out=None)
        if name != OF_ROWS:
            add("--out", type=Path, help="where the JSON goes (default: into benchmarks/results)")
    _load(flags["load"])
    _accelerator(flags["accelerator"])
    flags["render"].add_argument("--check", action="store_true", help="compare, write nothing")
    return made


def _load(flags: argparse.ArgumentParser) -> None:
    add = flags.add_argument
    target = "HOST:PORT, tei:HOST:PORT, or the URL that is posted to; several with commas (%(default)s)"
    add("--target", default="127.0.0.1:50051", help=target)
    add("--workload", choices=named(), default="short", help="which requests (default: %(default)s)")
    add("--scale", choices=SCALES, default="small", help="of shapes: for two cores, or a device (%(default)s)")
    add("--clients", type=int, default=0, help="closed loop (default: the workload's own)")
    add("--rate", type=float, default=0.0, help="open loop instead: requests a second, whatever the answers do")
    add("--seconds", type=float, default=5.0, help="of the window (default: %(default)s)")
    add("--warmup", type=float, default=0.5, help="seconds of the same load before it (default: %(default)s)")
    add("--requests", type=int, default=0, help="so many instead of the seconds; all count")
    add("--deadline", type=float, default=0.0, help="seconds of each call; goodput counts what kept to it (none)")
    add("--seed", type=int, default=1, help="of texts and arrivals (default: %(default)s)")
    add("--watch", action="append", default=[], metavar="NAME=PID", help="a process whose CPU is told; repeats")
    add("--json", action="store_true", help="print JSON instead of a table")


def _accelerator(flags: argparse.ArgumentParser) -> None:
    add = flags.add_argument
    add("--device", default="cuda:0", help="or cpu, for trying it out (default: %(default)s)")
    add("--scale", choices=SCALES, default="full", help="of shapes (default: %(default)s)")
    add("--seconds", type=float, default=3.0, help="of each closed loop (default: %(default)s)")
    add("--limit", type=float, default=300.0, help="seconds for everything (default: %(default)s)")
    add("--commit", default="", help="what is measured, where there is no git to tell")
    add("--only", nargs="+", default=[""], metavar="WORD", help="parts whose names have one of these words (all)")
    add("--add", action="store_true", help="to an earlier result of this device, in place of the same parts")
    add("--out", type=Path, default=result.RESULTS / "accelerator.json", help="default: %(default)s")


def measure(arguments: argparse.Namespace) -> int:
    """Runs a benchmark, or its rows. A row that fails is told, and the next one is run."""
    if arguments.name != OF_ROWS:
        _measure(arguments, arguments.name + (f"-{arguments.shape}" if arguments.shape != MINILM else ""))
        return 0
    failed = False
    for row in arguments.row or rows():
        try:
            _measure(arguments, f"{OF_ROWS}/{row}", row=row)
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and not isinstance(error.code, str):
                raise  # a signal's, which ends everything
            print(f"{row}: {error!r}", file=sys.stderr)
            failed = True
    return int(failed)


def _measure(arguments: argparse.Namespace, name: str, row: str = "") -> None:
    """Runs a benchmark, writes its result by this name and prints it."""
    from benchmarks.benchmark import run

    rounds, quick = (arguments.rounds, arguments.starts), arguments.quick
    options: dict[str, Any] = {"threads": arguments.threads, "seconds": arguments.seconds, "quick": quick, "row": row}
    options |= {"against": arguments.against} | ({"shape": arguments.shape} if arguments.shape != MINILM else {})
    if quick:
        options["seconds"], rounds = 1.0, (1, 1)
    module: Any = import_module(module_of(arguments.name))
    measured = run(module, name, options, *rounds)
    if arguments.out or not quick:
        result.write(measured, arguments.out or result.RESULTS / f"{name}.json")
    print(f"{measured['says']}\n{measured['settings']}\n\n{result.tables(measured)}", flush=True)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started, as Ctrl-C does
    flags = parser()
    arguments = flags.parse_args()
    try:
        if arguments.name in ROUNDS:
            return measure(arguments)
        if arguments.name:
            return int(import_module(module_of(arguments.name)).main(arguments))
        flags.print_help()
    except KeyboardInterrupt:  # what was started has been ended on the way here
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
