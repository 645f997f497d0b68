"""`python -m selvage.bulk`: exits with 0 when all is done, 1 where it failed, 2 for flags, 130 after Ctrl-C."""

import sys
from collections.abc import Sequence
from typing import Any

import grpc

from selvage.bulk.failures import Failed
from selvage.bulk.flags import parse
from selvage.bulk.job import Summary, run
from selvage.bulk.meter import Meter, clock_time
from selvage.bulk.options import Options
from selvage.bulk.service import ChannelService

BY_CTRL_C = 130


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    options = parse(arguments)
    meter = Meter()
    try:
        services = [
            ChannelService(each, channel) for each, channel in zip(options.services, channels(options), strict=True)
        ]
        summary = run(options, services, meter)
    except Failed as failed:
        meter.end()
        print(failed, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        meter.end()
        print("Stopped; the same command goes on.", file=sys.stderr)
        return BY_CTRL_C
    meter.end()
    print(told(options, summary))
    return 0


def channels(options: Options) -> list[Any]:
    """To all targets, or into this process. Raises Failed where its model is refused."""
    if not options.engine:
        return [each.channel(grpc) for each in options.services]
    try:
        from selvage.engine.channel import local_channel

        return [local_channel(options.engine, options.engine_options)]
    except (ImportError, TypeError, ValueError) as error:
        raise Failed(f"--engine: {error}") from error


def told(options: Options, summary: Summary) -> str:
    """What became of all."""
    rate = summary.texts / summary.seconds
    lines = [f"{summary.rows:,} vectors in {summary.shards:,} shards of {options.output}"]
    lines += [f"{summary.empty:,} empty texts were left out"] if summary.empty else []
    lines += [f"{summary.bad:,} bad rows are in {options.output}/_bad-*.jsonl"] if summary.bad else []
    took = f"{summary.texts:,} texts in {clock_time(summary.seconds)}, {rate:,.0f} a second"
    return "\n".join([*lines, took if summary.texts else "there was nothing left to do"])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
