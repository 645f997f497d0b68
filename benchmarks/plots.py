"""Results as SVG. Knows no files. The same result gives the same bytes: fixed ids, no date, no random numbers.

Colours are Okabe and Ito's, which are told apart with every kind of colour blindness; hatches, markers and dashes say
the same without colour.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7")
HATCHES = ("", "//", "--", "xx", "\\\\", "++")
MARKERS = ("o", "s", "^", "D", "v", "P")
STYLE: Any = {"svg.hashsalt": "selvage", "svg.fonttype": "none", "font.size": 10, "hatch.linewidth": 0.5}
SIZE = (9.0, 4.5)
"""Inches."""
Result = Mapping[str, Any]
SWEEP = "clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Drawn from the result of `benchmark` where it has what the plot shows; `says` is what one sees in it."""

    benchmark: str
    says: str
    draw: Callable[[Axes, Result], None]
    has: Callable[[Result], bool] = bool

    def svg(self, result: Result) -> str:
        """The file's content."""
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=SIZE, layout="constrained")
            axes = figure.add_subplot()
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", alpha=0.3)
            axes.set_axisbelow(True)
            self.draw(axes, result)
            written = io.StringIO()
            figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
        return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def offline(axes: Axes, result: Result) -> None:
    """A group of bars a mix of lengths."""
    groups = {
        f"{case['texts']} texts, {case['mix']}": {
            name: side["tokens_per_second"] for name, side in case["sides"].items()
        }
        for case in result["cases"]
    }
    _bars(axes, groups)
    axes.set_ylabel("tokens/s (more is better)")
    _title(axes, f"The engine with {result['workload']['model']}, {result['threads']} threads", result)


def infinity(axes: Axes, result: Result) -> None:
    """A group of bars a load."""
    groups = {
        case["case"]: {name: side["requests_per_second"] for name, side in case["sides"].items()}
        for case in result["cases"]
    }
    _bars(axes, groups)
    axes.set_ylabel("requests/s (more is better)")
    _title(axes, f"Both services and Infinity with {result['model']}, {result['threads']} threads a server", result)


def scaling(axes: Axes, result: Result) -> None:
    """A line a number of frontends, over the clients."""
    for number, (frontends, cases) in enumerate(_sweep(result).items()):
        rates = [case["requests_per_second"] for case in cases.values()]
        axes.plot(list(cases), rates, label=_frontends(frontends), color=COLOURS[number], marker=MARKERS[number])
    axes.set_xscale("log", base=2)
    counts = sorted({count for cases in _sweep(result).values() for count in cases})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("clients in a closed loop")
    axes.set_ylabel("requests/s (more is better)")
    axes.set_ylim(bottom=0)
    axes.legend()
    _title(axes, _swept(result), result)


def latency(axes: Axes, result: Result) -> None:
    """p50 and p99 over tokens/s: the sweep as lines whose points are numbers of clients, open loops as points."""
    for number, (frontends, cases) in enumerate(_sweep(result).items()):
        rates = [case["tokens_per_second"] for case in cases.values()]
        for percentile, dashes in (("p50", "-"), ("p99", "--")):
            times = [case["latency_ms"][percentile] for case in cases.values()]
            label = f"{percentile}, {_frontends(frontends)}"
            axes.plot(rates, times, dashes, label=label, color=COLOURS[number], marker=MARKERS[number])
        for count, case in cases.items():
            place = (case["tokens_per_second"], case["latency_ms"]["p99"])
            axes.annotate(str(count), place, xytext=(4, 4), textcoords="offset points", fontsize=8)
    for number, (name, case) in enumerate(_open_loops(result).items(), start=2):
        times = [case["latency_ms"][percentile] for percentile in ("p50", "p99")]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        rates = [case["tokens_per_second"]] * 2
        axes.plot(rates, times, ":", label=f"p50 to p99, {name}", color=colour, marker=marker)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("tokens/s (more is better)")
    axes.set_ylabel("latency in ms (less is better)")
    axes.legend(fontsize=8)
    _title(axes, f"{_swept(result)}, points with their clients", result)


def _bars(axes: Axes, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Groups of bars side by side, each with its figure on top; every group has the same sides."""
    sides = list(next(iter(groups.values())))
    width = 0.85 / len(sides)
    for number, side in enumerate(sides):
        places = [group + (number - (len(sides) - 1) / 2) * width for group in range(len(groups))]
        heights = [group[side] for group in groups.values()]
        colour, hatch = COLOURS[number % len(COLOURS)], HATCHES[number % len(HATCHES)]
        bars = axes.bar(places, heights, width, label=side, edgecolor="white", color=colour, hatch=hatch)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=7, rotation=90, padding=2)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.margins(y=0.15)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _sweep(result: Result) -> dict[int, dict[int, Result]]:
    """By frontends, then by clients, in ascending order."""
    found: dict[int, dict[int, Result]] = {}
    for name, case in result["workloads"][SWEEP]["cases"].items():
        found.setdefault(case["frontends"], {})[int(name.split()[0])] = case
    return {frontends: dict(sorted(found[frontends].items())) for frontends in sorted(found)}


def _open_loops(result: Result) -> dict[str, Result]:
    return {
        f"{workload}: {name}": case
        for workload, each in result["workloads"].items()
        for name, case in each["cases"].items()
        if name.startswith("open")
    }


def _frontends(count: int) -> str:
    return f"{count} frontend{'s' * (count > 1)}"


def _swept(result: Result) -> str:
    return f"Workload {SWEEP}: texts of about 500 tokens through both services, {result['workloads'][SWEEP]['model']}"


def _title(axes: Axes, workload: str, result: Result) -> None:
    machine = result["machine"]
    axes.set_title(f"{workload}\n{machine['processor']}, {machine['cores']} cores", fontsize=10, loc="left")


def _has_sweep(result: Result) -> bool:
    return SWEEP in result.get("workloads", {})


PLOTS: dict[str, Plot] = {
    "offline-cpu": Plot(
        benchmark="offline-cpu",
        says="Bars: tokens a second of the engine and of its peers on each mix of lengths",
        draw=offline,
    ),
    "infinity-cpu": Plot(
        benchmark="infinity-cpu",
        says="Bars: requests a second of both services and of Infinity under each load",
        draw=infinity,
    ),
    "clients-scaling": Plot(
        benchmark="services-cpu",
        says="Lines: requests a second over the number of clients, with one frontend and with four",
        draw=scaling,
        has=_has_sweep,
    ),
    "clients-latency": Plot(
        benchmark="services-cpu",
        says="Lines: median and 99th percentile of latency over tokens a second, as clients grow in number",
        draw=latency,
        has=_has_sweep,
    ),
}
"""By file name without its ending."""


def of(benchmark: str, result: Result) -> Sequence[str]:
    """Names of the plots that this result can be drawn as."""
    return [name for name, plot in PLOTS.items() if plot.benchmark == benchmark and plot.has(result)]
