"""The result of an accelerator's run so far: JSON that is whole on disk after each row, and profiles beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import result
from benchmarks.roofline import Device, floor, shape
from benchmarks.workloads import named

Row = dict[str, Any]


class Report:
    """Rows by section; a workload's rows get their floor once the device's `limits` are measured."""

    def __init__(self, head: Mapping[str, Any], out: Path) -> None:
        self._head, self._out, self._workloads = head, out, named(head["settings"]["scale"])
        self.limits: Row = {}
        self.sections: dict[str, list[Row]] = {}
        for old in out.parent.glob(f"{out.stem}-*.txt"):
            old.unlink()

    def add_row(self, section: str, row: Row) -> None:
        """Appends a row to a section, prints it, and writes the result."""
        if self.limits and "tokens/s" in row:
            workload = self._workloads[row["workload"]]
            least = floor(shape(workload.model), workload, row["in flight"], Device(**self.limits))
            share = round(100 * row["tokens/s"] / least.tokens_per_second, 1)
            row |= {"floor tokens/s": round(least.tokens_per_second), "bound by": least.binds, "% of floor": share}
        self.sections.setdefault(section, []).append(row)
        print(f"{section}: {', '.join(f'{name} {value}' for name, value in row.items())}", flush=True)
        result.write({**self._head, "limits": self.limits, **self.sections}, self._out)

    def profile(self, workload: str, text: str) -> None:
        """Appends a profile to the workload's file, which has those of all kinds of encoder."""
        with self._out.with_name(f"{self._out.stem}-{workload}.txt").open("a") as file:
            file.write(text)
