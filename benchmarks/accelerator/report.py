"""What the parts told, merged: limits beside measurements, goals beside both. As JSON, and as a table for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.accelerator import goals
from benchmarks.accelerator.part import Part

Row = dict[str, Any]
HEADS = ("workload", "in flight", "req/s", "tok/s", "p50 ms", "p99 ms", "limit tok/s", "of limit", goals.PUBLISHER)
BUSY = "64 sequences, the device busy"
"""The case of ablation (b) that is a step's: what it takes the host while the device works."""


@dataclass(slots=True, kw_only=True)
class Report:
    """Grows a part at a time. `head` says where, when and with what; `judged`: whether goals are for these shapes."""

    head: Mapping[str, Any]
    judged: bool
    limits: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    parts: list[Row] = field(default_factory=list)
    splitting: Mapping[str, Any] = field(default_factory=dict)

    def add(self, part: Part, found: Any, why: str, seconds: float) -> None:
        """`found`: what the part wrote, or None; `why`: what went wrong with it, or nothing."""
        self.parts.append({"part": part.name, "seconds": round(seconds, 1)} | ({"error": why} if why else {}))
        if part.name == "limits":
            self.limits = found or {}
        elif part.name == "ablations b" and found:
            self.splitting = _splitting(found)
        rows = list(found or []) if part.workloads else []
        answered = {row["workload"] for row in rows}
        owed = [{"workload": name, "error": why or "no row"} for name in part.workloads if name not in answered]
        self.rows += [self._compared(row) for row in rows] + owed

    def skip(self, part: Part, why: str) -> None:
        """It was not run, and is told of."""
        self.parts.append({"part": part.name, "skipped": why})
        self.rows += [{"workload": name, "skipped": why} for name in part.workloads]

    @property
    def failed(self) -> bool:
        """Whether anything that ran went wrong."""
        return any("error" in each for each in (*self.parts, *self.rows))

    def as_json(self) -> Row:
        """Whole after every part."""
        return {
            **self.head,
            "limits": self.limits,
            "goals": {"device": goals.DEVICE, "source": goals.SOURCE, "published_by": goals.PUBLISHER},
            "rows": self.rows,
            "splitting": self.splitting,
            "parts": self.parts,
        }

    def _compared(self, row: Row) -> Row:
        """With the limit that its operations set, and with its goal."""
        if "tokens_per_second" not in row:
            return row
        row = dict(row)
        flops = self.limits.get("flops_per_second")
        if flops and row.get("flops_per_token"):
            limit = flops / row["flops_per_token"]
            row |= {
                "limit_tokens_per_second": round(limit),
                "share_of_limit": round(row["tokens_per_second"] / limit, 4),
            }
        if self.judged:
            goal = goals.of(row)
            row |= {"published": goal.published.as_json(), "goal": goal.wanted.as_json(), "goal_met": goal.met_by(row)}
        return row

    def lines(self) -> list[str]:
        """The table, what limits it, and which parts there were."""
        limits, told = self.limits, []
        if limits:
            rates = limits["flops_per_second"] / 1e12, limits["bytes_per_second"] / 1e12
            told.append(f"{limits['device']}: {rates[0]:,.4g} TFLOP/s in bfloat16, {rates[1]:,.3g} TB/s")
        told += _aligned([[*HEADS, f"goal ({goals.DEVICE})"], *(_cells(row) for row in self.rows)])
        if self.splitting:
            told.append(f"splitting a step's rows, {BUSY}: {self.splitting['microseconds']:.2f} us")
        for part in self.parts:
            says = part.get("error") or (f"skipped: {part['skipped']}" if "skipped" in part else "done")
            told.append(f"{part['part']:24} {part.get('seconds', 0):6.1f} s  {says}")
        return told


def _splitting(ablations: Mapping[str, Any]) -> Row:
    """Of the case with a busy device, if it is there: microseconds that our way holds the host, and what is wanted."""
    ablation = ablations["ablations"]["b"]
    for case in ablation["cases"]:
        if case["case"] == BUSY:
            median = case["variants"][case["ours"]]["figures"]["time"]["median"]
            return {"case": BUSY, "microseconds": round(median * 1e6, 3), "published": ablation["published"]}
    return {}


def _cells(row: Row) -> list[str]:
    name = f"{row['workload']}"
    if "tokens_per_second" not in row:
        return [name, f"ERROR {row['error']}" if "error" in row else f"skipped: {row['skipped']}"]
    latency, share, met = row["latency_ms"], row.get("share_of_limit"), row.get("goal_met")
    rates = [f"{row['requests_per_second']:,.1f}", f"{row['tokens_per_second']:,}"]
    times = [f"{latency['p50']:,.2f}", f"{latency['p99']:,.2f}"]
    limit = [f"{row['limit_tokens_per_second']:,}", f"{share:.1%}"] if share is not None else ["", ""]
    goal = goals.of(row) if met is not None or "published" in row else goals.Goal()
    verdict = "" if met is None else " met" if met else " MISSED"
    encoder = f"{row['share_of_encoder']:.0%} of the encoder; " if "share_of_encoder" in row else ""
    last = f"{encoder}{goal.wanted.shown()}{verdict}" + (f" ERROR {row['error']}" if "error" in row else "")
    return [name, f"{row['in_flight']}", *rates, *times, *limit, goal.published.shown(), last]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need to be; a short row is a message, and widens none."""
    whole = [row for row in table if len(row) > 2]
    widths = [max(len(cell) for cell in column) for column in zip(*whole, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        if len(row) > 2
        else f"{row[0].ljust(widths[0])}  {row[1]}"
        for row in table
    ]
