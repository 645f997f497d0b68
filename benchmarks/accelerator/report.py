"""The result of an accelerator's run so far: JSON that is whole on disk after each row, and profiles beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import result
from benchmarks.roofline import Device, floor, shape
from benchmarks.workloads import Scale, named

Row = dict[str, Any]


class Report:
    """Rows by section; a workload's rows get their floor once the device's `limits` are measured."""

    def __init__(self, head: Mapping[str, Any], out: Path, *, add: bool = False) -> None:
        """`add`: keep what `out` has of earlier runs, until `begin_part` drops it."""
        self.scale: Scale = head["settings"]["scale"]
        self._head, self._out, self._workloads = head, out, named(self.scale)
        self.limits: Row = {}
        self.sections: dict[str, list[Row]] = {}
        self._earlier: dict[str, list[Row]] = {}
        if add and out.is_file():
            earlier = json.loads(out.read_text())
            self.limits = earlier["limits"]
            self.sections = {name: rows for name, rows in earlier.items() if isinstance(rows, list)}
            for row in self.sections["parts"]:
                row.setdefault("commit", earlier["machine"]["commit"])
            return
        for old in self._profiles():
            old.unlink()

    def begin_part(self, part: str) -> None:
        """Sets what earlier runs found of a part aside, and drops its profiles."""
        self._earlier = self._taken(part)
        for old in self._profiles():
            workload = self._workloads.get(old.stem.removeprefix(f"{self._out.stem}-"))
            if workload is None or f"engine, {workload.model}" == part:
                old.unlink()

    def end_part(self, row: Row) -> None:
        """Adds the row of a part that has ended. Where it failed, what an earlier run found of it comes back instead;
        one that was skipped changes nothing that was found."""
        part, earlier = row["part"], self._earlier
        self._earlier = {}
        if "error" in row and earlier:
            self._taken(part)
            for section, rows in earlier.items():
                self.sections[section] += rows
            self._write()
        elif "skipped" not in row or all(other["part"] != part for other in self.sections.get("parts", ())):
            self.add_row("parts", row)

    def _taken(self, part: str) -> dict[str, list[Row]]:
        """Takes the rows of a part out of all sections."""
        taken: dict[str, list[Row]] = {}
        for section, rows in self.sections.items():
            taken[section] = [row for row in rows if self._part_of(section, row) == part]
            rows[:] = [row for row in rows if self._part_of(section, row) != part]
        return {section: rows for section, rows in taken.items() if rows}

    def _part_of(self, section: str, row: Row) -> str:
        """The name of the part that made a row."""
        match section:
            case "parts":
                return str(row["part"])
            case "attention":
                return f"attention, heads of {row['head']}"
            case "maxsim":
                return f"maxsim, torch.{row['shape'].rpartition(', ')[2]}"
            case "services":
                return f"services, {row['workload']}"
            case _:
                return f"engine, {row.get('model') or self._workloads[row['workload']].model}"

    def _profiles(self) -> list[Path]:
        return list(self._out.parent.glob(f"{self._out.stem}-*.txt"))

    def add_row(self, section: str, row: Row) -> None:
        """Appends a row to a section, prints it, and writes the result."""
        if self.limits and "tokens/s" in row and "workload" in row:
            workload = self._workloads[row["workload"]]
            least = floor(shape(workload.model), workload, row["in flight"], Device(**self.limits))
            share = round(100 * row["tokens/s"] / least.tokens_per_second, 1)
            row |= {"floor tokens/s": round(least.tokens_per_second), "bound by": least.binds, "% of floor": share}
        self.sections.setdefault(section, []).append(row)
        print(f"{section}: {', '.join(f'{name} {value}' for name, value in row.items())}", flush=True)
        self._write()

    def _write(self) -> None:
        result.write({**self._head, "limits": self.limits, **self.sections}, self._out)

    def profile(self, workload: str, text: str) -> None:
        """Appends a profile to the workload's file, which has those of all kinds of encoder."""
        with self._out.with_name(f"{self._out.stem}-{workload}.txt").open("a") as file:
            file.write(text)
