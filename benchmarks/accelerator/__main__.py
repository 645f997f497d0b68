"""Runs all parts within a budget, writes JSON after each, prints a table; 1 where anything went wrong."""

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.accelerator import options
from benchmarks.accelerator.part import Part
from benchmarks.accelerator.plan import parts_of
from benchmarks.accelerator.report import Report
from benchmarks.machine import describe

RESULT = Path(__file__).parents[1] / "results" / "accelerator.json"
LEAST = 10
"""Seconds that a part needs to get anywhere."""


def run(parts: list[Part], report: Report, device: str, budget: float, out: Path) -> None:
    """One after the other, until the budget is spent."""
    deadline = time.monotonic() + budget
    for part in parts:
        start = time.monotonic()
        if part.needs_cuda and not device.startswith("cuda"):
            report.skip(part, "it needs CUDA")
        elif deadline - start < LEAST:
            report.skip(part, f"the budget of {budget:g} s is spent")
        else:
            print(f"--- {part.name}", flush=True)
            why = part.run(deadline - start)
            found = json.loads(part.result.read_text()) if part.result and part.result.is_file() else None
            report.add(part, found, why, time.monotonic() - start)
        options.write(out, report.as_json())


def main() -> int:
    parser = options.parser("benchmarks.accelerator", __doc__, RESULT)
    parser.add_argument("--budget", type=float, default=510.0, help="seconds for everything (default: %(default)s)")
    parser.add_argument("--only", nargs="+", default=[], help="parts by name; default: all of them")
    parser.add_argument("--commit", default="", help="what is measured, where there is no git to tell")
    given = parser.parse_args()
    machine = describe()
    head = {
        "benchmark": "accelerator",
        "scale": given.scale,
        "seed": given.seed,
        "seconds": given.seconds,
        "budget_seconds": given.budget,
        "machine": machine | ({"commit": given.commit} if given.commit else {}),
    }
    report = Report(head=head, judged=given.scale == "full" and given.device.startswith("cuda"))
    with TemporaryDirectory() as made:
        parts = parts_of(given, Path(made))
        names = [part.name for part in parts]
        unknown = set(given.only) - set(names)
        if unknown:
            parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        chosen = [part for part in parts if part.name in (given.only or names)]
        run(chosen, report, given.device, given.budget, given.out)
    print("\n".join(report.lines()))
    print(f"written to {given.out}")
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
