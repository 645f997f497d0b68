"""How far the ratios of a second run lie from those of a first: `python -m benchmarks.repeat FIRST`.

FIRST is a folder with the result files of the first run, such as a copy of benchmarks/results made before `make bench`
ran again (`make repeat` does both). A ratio that moved by less than a tenth repeats.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import ratios

RESULTS = Path(__file__).parent / "results"
RESULT = RESULTS / "repeat-cpu.json"
NEAR = 0.1
"""Of the first run's ratio."""


def compare(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    """Two results of one benchmark: every ratio that both have, and by how much of itself it moved."""
    before, after = ratios.of(first), ratios.of(second)
    return [
        {"ratio": name, "first": round(before[name], 3), "second": round(after[name], 3), "moved": round(moved, 3)}
        for name in before
        if name in after
        for moved in [after[name] / before[name] - 1]
    ]


def compare_all(first: Path, second: Path) -> dict[str, Any]:
    """Of all benchmarks that both folders have results of. Raises ValueError where there is none."""
    found = {}
    for name in ratios.KNOWN:
        paths = [folder / f"{name}.json" for folder in (first, second)]
        contents = [path.read_text() for path in paths if path.is_file()]
        if len(contents) == 2 and contents[0] != contents[1]:  # the same file has not been measured again
            runs = [json.loads(content) for content in contents]
            compared = compare(*runs)
            found[name] = {
                "commits": [run["machine"]["commit"] for run in runs],
                "processors": [run["machine"]["processor"] for run in runs],
                "near": sum(abs(each["moved"]) <= NEAR for each in compared),
                "of": len(compared),
                "ratios": compared,
            }
    if not found:
        raise ValueError(f"{first} and {second} have no two runs of one benchmark; known are {', '.join(ratios.KNOWN)}")
    return {"benchmark": "repeat-cpu", "near_is": NEAR, "benchmarks": found}


def table_of(result: dict[str, Any]) -> Table:
    """The ratios that moved further, and how many did not."""
    table = Table("benchmark", "ratio", "first", "second", "moved")
    for name, found in result["benchmarks"].items():
        table.add_row(name, f"{found['near']} of {found['of']} within {result['near_is']:.0%}", "", "", "")
        for each in found["ratios"]:
            if abs(each["moved"]) > result["near_is"]:
                table.add_row(
                    "", each["ratio"], f"{each['first']:.2f}", f"{each['second']:.2f}", f"{each['moved']:+.0%}"
                )
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.repeat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path, help="folder with the first run's result files")
    parser.add_argument("--second", type=Path, default=RESULTS, help="with the second run's (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT, help="where the JSON goes (default: %(default)s)")
    given = parser.parse_args()
    try:
        outcome = compare_all(given.first, given.second)
    except ValueError as error:
        parser.error(str(error))
    given.out.write_text(json.dumps(outcome, indent=1) + "\n")
    Console().print(table_of(outcome))
