"""The result of an accelerator's run so far: JSON that is whole on disk after each row."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import result
from benchmarks.roofline import Device, floor, shape
from benchmarks.workloads import named

Row = dict[str, Any]


class Report:
    """Rows by section, each with its part; those of a workload get their floor once the `limits` are measured."""

    def __init__(self, head: Mapping[str, Any], out: Path, *, add: bool = False) -> None:
        """`add`: keep what `out` has of earlier runs, until `begin_part` drops it."""
        self._head, self._out, self._workloads = head, out, named(head["settings"]["scale"])
        earlier = json.loads(out.read_text()) if add and out.is_file() else {}
        self.limits: Row = earlier.get("limits", {})
        self._sections: dict[str, list[Row]] = {name: rows for name, rows in earlier.items() if isinstance(rows, list)}
        self._part, self._earlier = "", self._sections

    def begin_part(self, part: str) -> None:
        """Drops what earlier runs measured of a part."""
        self._part, self._earlier = part, self._sections
        self._sections = {
            section: [row for row in rows if row["part"] != part] for section, rows in self._sections.items()
        }

    def end_part(self, part: str, outcome: Row) -> None:
        """Adds the row of a part that has ended. Where it failed, what an earlier run measured of it comes back; one
        that was skipped changes nothing that was measured."""
        before = any(row["part"] == part for row in self._earlier.get("parts", ()))
        if before and "error" in outcome:
            self._sections = self._earlier
            self._write()
        elif not (before and "skipped" in outcome):
            self._part = part
            self.add_row("parts", outcome)
        self._earlier = self._sections

    def add_row(self, section: str, row: Row) -> None:
        """Appends a row to a section, prints it, and writes the result."""
        if self.limits and "tokens/s" in row and "workload" in row:
            workload = self._workloads[row["workload"]]
            least = floor(shape(workload.model), workload, row["in flight"], Device(**self.limits))
            share = round(100 * row["tokens/s"] / least.tokens_per_second, 1)
            row |= {"floor tokens/s": round(least.tokens_per_second), "bound by": least.binds, "% of floor": share}
        self._sections.setdefault(section, []).append({"part": self._part, **row})
        print(f"{section}: {', '.join(f'{name} {value}' for name, value in row.items())}", flush=True)
        self._write()

    def _write(self) -> None:
        result.write({**self._head, "limits": self.limits, **self._sections}, self._out)
