"""Drives a running service (or a peer over HTTP) with a named workload, and prints what it did.

    python -m harness                                                    # in another shell: the pair on MiniLM
    python -m benchmarks.load --workload short --clients 64 --seconds 10
    python -m benchmarks.load --workload lognormal --rate 40             # open loop: 40 requests/s, Poisson arrivals
    python -m benchmarks.load --workload clients --target 127.0.0.1:50051,127.0.0.1:50052 --clients 8
    python -m benchmarks.load --workload instruct-burst                  # 2,000 requests at once, as it is defined
    python -m benchmarks.load --workload short --http http://127.0.0.1:7997 --http-model minilm   # a peer

Latency of a closed loop is from sending to the answer; of an open loop from the moment a request was due, sent or not.
After the run the generator is measured against a server that does nothing: unless it reaches three times what was
measured, the generator may have been the limit, and the table says so. With another model than the workload's own
(--list tells it) say --model, since texts are made of words that its tokenizer keeps whole.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import workloads
from benchmarks.load.ceiling import Ceiling, ceiling_of
from benchmarks.load.generator import LoadFailed, generate
from benchmarks.load.outcome import Outcome
from benchmarks.load.pattern import Closed, Open
from benchmarks.load.plan import Plan
from benchmarks.load.target import EMBED, GrpcAddress, HttpAddress
from benchmarks.machine import describe
from harness.running import run

HTTP_PATHS = {True: "/embeddings", False: "/rerank"}


def plan_of(arguments: argparse.Namespace, workload: workloads.Workload) -> Plan:
    """What the flags ask for, and the workload's own where they are silent. Raises ValueError."""
    pattern: Closed | Open = workload.pattern
    if arguments.seconds or arguments.requests:
        pattern = replace(pattern, seconds=arguments.seconds, requests=arguments.requests)
    if arguments.rate:
        pattern = Open(rate=arguments.rate, seconds=pattern.seconds, requests=pattern.requests)
    elif arguments.clients:
        pattern = replace(pattern, clients=arguments.clients)
    if arguments.http:
        path = HTTP_PATHS[workload.method == EMBED]
        address: GrpcAddress | HttpAddress = HttpAddress(
            servers=tuple(each.rstrip("/") + path for each in arguments.http.split(","))
        )
    else:
        address = GrpcAddress(servers=tuple(arguments.target.split(",")), method=workload.method)
    return Plan(
        address=address,
        requests=workload.prepared_http(arguments.http_model) if arguments.http else workload.prepared(),
        pattern=pattern,
        warmup=arguments.warmup,
        timeout=arguments.timeout,
        seed=arguments.seed,
    )


def table_of(title: str, outcome: Outcome, ceiling: Ceiling | None) -> Table:
    """What a person wants to know first."""
    figures = outcome.figures()
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_row("answered", f"{figures['requests']:,} in {figures['seconds']:.2f} s")
    table.add_row("errors", ", ".join(f"{status} {times:,}" for status, times in figures["errors"].items()) or "none")
    table.add_row("requests/s", f"{figures['requests_per_second']:,.2f}")
    table.add_row("tokens/s", f"{figures['tokens_per_second']:,}" if figures["tokens"] else "not told")
    kinds = figures.get("kinds", {}) | {"latency": figures}
    for kind, those in kinds.items():
        row = ", ".join(f"{name} {value:,.1f}" for name, value in those["latency_ms"].items())
        table.add_row(f"{kind}, ms", row)
    if "sent_late_ms" in figures:
        row = ", ".join(f"{name} {value:,.1f}" for name, value in figures["sent_late_ms"].items())
        table.add_row("sent late, ms", row)
    table.add_row("CPU seconds", ", ".join(f"{name} {spent:.2f}" for name, spent in figures["cpu_seconds"].items()))
    if ceiling:
        verdict = "" if ceiling.proven else "  [bold]the generator may be the limit[/]"
        reached = ceiling.outcome.requests_per_second
        table.add_row("null server", f"{reached:,.0f} requests/s, {ceiling.times:,.1f} times as many{verdict}")
    return table


async def main(arguments: argparse.Namespace) -> None:
    workload = workloads.build(arguments.workload, scale=arguments.scale, seed=arguments.seed, model=arguments.model)
    plan = plan_of(arguments, workload)
    watch = {name: int(pid) for name, _, pid in (each.partition("=") for each in arguments.watch)}
    outcome = await generate(plan, processes=arguments.processes, watch=watch, title=workload.name)
    ceiling = None
    if arguments.null:
        ceiling = await ceiling_of(
            plan, outcome, seconds=arguments.null, processes=arguments.processes, title="null server"
        )
    Console().print(table_of(f"{workload.name}: {workload.measures}", outcome, ceiling))
    if arguments.out:
        told = {
            "benchmark": "load",
            "workload": workload.name,
            "scale": arguments.scale,
            "model": workload.model,
            "seed": arguments.seed,
            "pattern": repr(plan.pattern),
            "machine": describe(),
            **outcome.figures(),
            **({"null_server": ceiling.figures()} if ceiling else {}),
        }
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    """All flags."""
    flags = argparse.ArgumentParser(
        prog="python -m benchmarks.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("--workload", choices=workloads.names(), default="short", help="which requests (default: %(default)s)")
    add("--list", action="store_true", help="list the workloads with their models, and end")
    add("--scale", choices=("small", "full"), default="small", help="for two cores, or an accelerator (%(default)s)")
    add("--model", default="", help="what the target serves, as its worker was told; default: the workload's own")
    add("--seed", type=int, default=1, help="of texts and arrivals (default: %(default)s)")
    add("--target", default="127.0.0.1:50051", help="HOST:PORT of a frontend, several with commas (%(default)s)")
    add("--http", default="", help="base URL of a peer that takes /embeddings and /rerank, several with commas")
    add("--http-model", default="", help="what the peer calls its model")
    add("--clients", type=int, help="closed loop: clients that wait for their answer; default: the workload's own")
    add("--rate", type=float, help="open loop instead: requests a second, whatever the answers do")
    length = flags.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="how long to measure; default: the workload's own")
    length.add_argument("--requests", type=int, help="how many requests to measure instead")
    add("--warmup", type=float, default=1.0, help="seconds of the same load before (default: %(default)s)")
    add("--timeout", type=float, default=300.0, help="seconds of each call (default: %(default)s)")
    add("--processes", type=int, default=0, help="client processes; 0: two, or a quarter of the cores if that is more")
    add("--watch", action="append", default=[], metavar="NAME=PID", help="a process whose CPU seconds count; repeats")
    add("--null", type=float, default=2.0, help="seconds against the null server, 0: not at all (%(default)s)")
    add("--out", type=Path, help="write JSON there too")
    return flags


if __name__ == "__main__":
    given = parser().parse_args()
    if given.list:
        for each in workloads.names():
            made = workloads.build(each, scale=given.scale, seed=given.seed)
            print(f"{each:15} {made.model:28} {made.measures}")
        sys.exit(0)
    try:
        run(main(given))
    except (LoadFailed, ValueError) as error:
        sys.exit(f"error: {error}")
