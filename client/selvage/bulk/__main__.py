"""`python -m selvage.bulk`: exits with 0 when all is done, 1 where it failed, 2 for flags, 130 after Ctrl-C."""

import os
import signal

if __name__ == "__main__":  # Ctrl-C during the other imports, which take a while, leaves no traceback
    signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))

import sys
from collections.abc import Sequence
from typing import NoReturn

from selvage.bulk import Failed
from selvage.bulk.flags import BulkOptions, parse
from selvage.bulk.job import Meter, Summary, clock_time, run
from selvage.bulk.sender import Target
from selvage.client import Client

BY_CTRL_C = 130


def main(arguments: Sequence[str]) -> int:
    """Runs the command, and returns its exit status."""
    meter = Meter()
    try:
        options = parse(arguments)
        summary = run(options, lambda: connect(options), meter)
    except Failed as failed:
        meter.end()
        print(failed, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        meter.end()
        print("Stopped; the same command goes on.", file=sys.stderr)
        return BY_CTRL_C
    meter.end()
    print(summary_text(options, summary))
    return 0


def connect(options: BulkOptions) -> list[Target]:
    """A client of each target, or the model in this process. Raises Failed where the model cannot be loaded."""
    if not options.engine:
        return [Target(target, Client(target, retries=0, **options.connection)) for target in options.targets]
    try:
        from selvage import Engine

        return [Target(options.engine, Engine(options.engine, **options.engine_options))]
    except (ImportError, TypeError, ValueError, RuntimeError) as error:
        raise Failed(f"--engine: {error}") from error


def summary_text(options: BulkOptions, summary: Summary) -> str:
    """The summary, as lines for people."""
    rate = summary.texts / summary.seconds
    lines = [f"{summary.rows:,} vectors in {summary.shards:,} shards of {options.output}"]
    lines += [f"{summary.empty:,} empty texts were left out"] if summary.empty else []
    lines += [f"{summary.bad:,} bad rows are in {options.output}/_bad-*.jsonl"] if summary.bad else []
    took = f"{summary.texts:,} texts in {clock_time(summary.seconds)}, {rate:,.0f} a second"
    return "\n".join([*lines, took if summary.texts else "there was nothing left to do"])


def end_process(status: int) -> NoReturn:
    """Ends the process at once: what was written is flushed, and nothing else is tidied up.

    The interpreter's own end would wait for ever, now and then: it deletes gRPC's call, whose lock is held by a thread
    that the interpreter has already stopped.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_process(main(sys.argv[1:]))
