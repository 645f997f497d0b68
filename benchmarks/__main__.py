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

from benchmarks import result
from benchmarks.published.rows import rows
from benchmarks.workloads import MINILM, SHAPES, batches, named

ROUNDS = {
    "offline": (2, 2),
    "engine": (3, 1),
    "maxsim": (4, 1),
    "services": (3, 1),
    "bulk": (3, 1),
    "overload": (1, 1),
    "rankings": (1, 1),
    "frontends": (1, 1),
    "latency": (3, 1),
}
"""Default rounds in each start, and starts, by benchmark."""
COMPARED = ("engine", "services")
"""Benchmarks that can compare with other checkouts."""
SHAPED = ("offline",)
"""Benchmarks with a choice of models."""
SCALES = ("tiny", "small", "full")
COMMANDS = {
    name.partition(".")[0]: f"benchmarks.{name}"
    for name in ("load.generator", "accelerator.run", "published.run", "render")
}
"""Modules of the commands that have flags of their own, by name."""


def words(module: str) -> str:
    """Reads a module's docstring without importing it, since some need packages that may be missing."""
    path = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    return path.read_text().split('"""')[1]


def parser() -> argparse.ArgumentParser:
    """Builds the parser of all commands."""
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=raw)
    names = made.add_subparsers(dest="name", metavar="NAME")
    modules = {name: f"benchmarks.{name}" for name in ROUNDS} | COMMANDS
    flags = {}
    for name, module in modules.items():
        says = words(module)
        flags[name] = names.add_parser(name, help=says.splitlines()[0], description=says, formatter_class=raw)
    for name, (rounds, starts) in ROUNDS.items():
        add = flags[name].add_argument
        add("--quick", action="store_true", help="one round of one second: shows that it works; writes no JSON")
        add("--threads", type=int, default=2, help="of every side (default: %(default)s)")
        add("--rounds", type=int, default=rounds, help="each has every side once (default: %(default)s)")
        add("--starts", type=int, default=starts, help="everybody anew, with the rounds in each (default: %(default)s)")
        loads = "of a load in a round: services, overload, frontends, latency (%(default)s)"
        add("--seconds", type=float, default=2.5, help=loads)
        if name in SHAPED:
            add(
                "--shape",
                choices=[MINILM, *SHAPES],
                default=MINILM,
                help="the model; others have random weights (%(default)s)",
            )
        if name in COMPARED:
            add("--against", action="append", metavar="PATH", help="another checkout; or infinity (services)")
        flags[name].set_defaults(against=[])
        file = f"{name}{'[-SHAPE]' * (name in SHAPED)}.json"
        add("--out", type=Path, help=f"where the JSON goes (default: benchmarks/results/{file})")
    _load(flags["load"])
    _accelerator(flags["accelerator"])
    _published(flags["published"])
    flags["render"].add_argument("--check", action="store_true", help="compare, write nothing")
    return made


def _load(flags: argparse.ArgumentParser) -> None:
    add = flags.add_argument
    target = "HOST:PORT, tei:HOST:PORT or http://..., several with commas (%(default)s)"
    add("--target", default="127.0.0.1:50051", help=target)
    add("--workload", choices=named() | batches(), default="short", help="which requests (default: %(default)s)")
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
    add(
        "--only",
        nargs="+",
        default=[""],
        metavar="WORD",
        help="parts whose names have one of these words; default: all",
    )
    add("--served", action="store_true", help="not by the layers as they are written, only in the form that serves")
    add("--add", action="store_true", help="to an earlier result of this device, in place of the same parts")
    add("--out", type=Path, default=result.RESULTS / "accelerator.json", help="default: %(default)s")


def _published(flags: argparse.ArgumentParser) -> None:
    add = flags.add_argument
    add(
        "--row",
        action="append",
        choices=list(rows()),
        metavar="NAME",
        help="one row; may be repeated (default: all)",
    )
    add("--scale", choices=SCALES[:2], default="small", help="of models and requests (default: %(default)s)")
    add("--rounds", type=int, default=3, help="each asks every side once in every case (default: %(default)s)")
    add("--seconds", type=float, default=0.0, help="of each case that counts no requests (default: the row's own)")
    add("--cores", default="", metavar="N,N", help="cores of servers and clients (default: all of this process)")
    add("--out", type=Path, default=result.RESULTS / "published", help="folder of the JSON, a file a row (%(default)s)")


def measure(arguments: argparse.Namespace) -> None:
    """Runs a benchmark, writes its result and prints it."""
    from benchmarks.benchmark import run

    seconds, rounds, starts = (
        (1.0, 1, 1) if arguments.quick else (arguments.seconds, arguments.rounds, arguments.starts)
    )
    options = {"threads": arguments.threads, "seconds": seconds, "against": arguments.against, "quick": arguments.quick}
    name, shape = arguments.name, getattr(arguments, "shape", MINILM)
    if shape != MINILM:
        options["shape"], name = shape, f"{name}-{shape}"
    measured = run(arguments.name, options, rounds, starts)
    if arguments.out or not arguments.quick:
        result.write(measured, arguments.out or result.RESULTS / f"{name}.json")
    print(f"{measured['says']}\n{measured['settings']}\n\n{result.tables(measured)}")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started, as Ctrl-C does
    flags = parser()
    arguments = flags.parse_args()
    try:
        if arguments.name in ROUNDS:
            measure(arguments)
        elif arguments.name:
            return int(import_module(COMMANDS[arguments.name]).main(arguments))
        else:
            flags.print_help()
    except KeyboardInterrupt:  # what was started has been ended on the way here
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
