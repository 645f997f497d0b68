"""A member's figures: its page of metrics, and its memory as Linux tells it."""

import asyncio
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from harness.member import ServiceProcess


class Scrape:
    """All series of one process at one moment."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self._series = {
            (each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._series.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """Of all series of that name with these labels among theirs."""
        wanted = set(labels.items())
        return sum(value for (each, its), value in self._series.items() if each == name and its >= wanted)


async def scrape(member: ServiceProcess) -> Scrape:
    """Over HTTP, at the address that the log tells."""
    *_, line = [line for line in member.events if line["event"] == "metrics"]

    def read() -> str:
        with urllib.request.urlopen(f"http://{line['address']}/metrics") as answer:
            return str(answer.read().decode())

    return Scrape(await asyncio.to_thread(read))


def forget_peak(member: ServiceProcess) -> None:
    """The peak (VmHWM) begins anew; proc(5)."""
    Path(f"/proc/{member.pid}/clear_refs").write_text("5")


def memory(member: ServiceProcess, key: str = "VmRSS") -> int:
    """Bytes."""
    lines = Path(f"/proc/{member.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
