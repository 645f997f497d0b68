"""Several commands and one folder: what fits together shares it, anything else is refused and harms nothing."""

from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import FakeService, contents, embed, jsonl, rows

from selvage import errors
from selvage.bulk import job, manifest, target
from selvage.bulk.board import Board
from selvage.bulk.failures import Failed
from selvage.bulk.windows import Window

TEXTS = [f"text {i}" for i in range(40)]
FLAGS = ("--format", "npy", "--rows-per-shard", "5")


@pytest.fixture
def source(tmp_path: Path) -> str:
    return jsonl(tmp_path / "a.jsonl", TEXTS)


def test_commands_that_share_a_folder_write_what_one_would(source: str, tmp_path: Path) -> None:
    """In any order; each one's restart is its own."""
    embed(tmp_path / "one", source, *FLAGS)
    for flags in (("--shard", "1/2"), ("--shard", "0/2"), ("--shard", "1/2", "--restart")):
        embed(tmp_path / "two", source, *FLAGS, *flags)
    one, two = (
        {name: found for name, found in contents(tmp_path / each).items() if name.startswith("part")}
        for each in ("one", "two")
    )
    assert one == two


@pytest.mark.parametrize(
    ("flags", "fingerprint", "told"),
    [
        (("--shard", "1/3"), "f", r'other settings: --shard was "i/2", now it is "i/3"'),
        ((), "f", r'other settings: --shard was "i/2", now it is "i/1"'),
        (("--restart",), "f", r'other settings: --shard was "i/2", now it is "i/1"'),
        (("--shard", "1/2", "--rows-per-shard", "4"), "f", "other settings: --rows-per-shard was 5, now it is 4"),
        (("--shard", "1/2"), "e", r"another model: it was fake \(ffff"),
    ],
)
def test_commands_that_do_not_fit_together_are_refused(
    source: str, tmp_path: Path, flags: tuple[str, ...], fingerprint: str, told: str
) -> None:
    """Other numbers of commands, settings, models: shards of both would lie side by side. Nothing is touched."""
    embed(tmp_path / "o", source, *FLAGS, "--shard", "0/2")
    before = contents(tmp_path / "o")
    with pytest.raises(Failed, match=rf"holds _manifest-0-of-2\.json too, begun with {told}"):
        embed(tmp_path / "o", source, *FLAGS, *flags, services=[FakeService(fingerprint=fingerprint * 64)])
    assert contents(tmp_path / "o") == before


def test_commands_that_see_other_inputs_are_refused(source: str, tmp_path: Path) -> None:
    """A pattern that matches more on one machine than on another would cut shards elsewhere."""
    embed(tmp_path / "o", source, *FLAGS, "--shard", "0/2")
    more = jsonl(tmp_path / "b.jsonl", ["one more"])
    with pytest.raises(Failed, match="begun with other inputs: 1 files then, 2 now"):
        embed(tmp_path / "o", source, more, *FLAGS, "--shard", "1/2")


def test_a_restart_that_was_killed_leaves_no_row_twice(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the new manifest, before the old files went: the command without --restart goes on, and they go."""
    folder, other = tmp_path / "o", ("--format", "npy", "--rows-per-shard", "10")
    embed(folder, source, *FLAGS)

    def killed(path: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            embed(folder, source, *other, "--restart")
    assert len(list(folder.glob("part-*.rows.jsonl"))) == 8
    embed(folder, source, *other)
    assert [row["row"] for row in rows(folder)] == [*range(40)]
    assert len(list(folder.glob("part-*.rows.jsonl"))) == 4


@pytest.mark.parametrize("output", ["in", "in/deep"])
def test_outputs_are_no_inputs(tmp_path: Path, output: str) -> None:
    """A folder below the inputs' is passed over when the command goes on; the inputs' own folder is refused."""
    (tmp_path / "in").mkdir()
    source = jsonl(tmp_path / "in" / "a.jsonl", TEXTS[:7])
    folder, pattern = tmp_path / output, str(tmp_path / "in" / "**")
    flags = (pattern, *FLAGS, "--skip-errors")
    if output == "in":
        with pytest.raises(Failed, match=r"--output: .*/in holds the input .*/a\.jsonl; take another folder"):
            embed(folder, *flags)
        return
    for texts in (7, 0):
        assert embed(folder, *flags).texts == texts
    with pytest.raises(Failed, match=r"is where the inputs .* lie"):
        embed(folder, f"{folder}/*.rows.jsonl", *FLAGS)
    with pytest.raises(Failed, match=r"holds the input .*part-000000\.rows\.jsonl"):
        embed(folder, source, str(folder / "part-000000.rows.jsonl"), *FLAGS)


def test_a_target_may_stay_away_for_long(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of tries, and then it is back."""
    monkeypatch.setattr(target, "LONGEST", 0.0)
    away, tries = FakeService(), []

    def refuse(*_: Any) -> None:
        tries.append(1)
        if len(tries) < 1500:
            raise errors.Unavailable("refused")

    away.script = refuse
    assert embed(tmp_path / "o", source, *FLAGS, "--patience", "60", services=[away]).rows == 40


def test_small_shards_leave_no_target_idle(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are counted that are under way, not the windows that shards cut them into."""
    most = [0]

    def add(board: Board, window: Window, real: Any = Board.add) -> None:
        real(board, window)
        most[0] = max(most[0], len(board._windows))

    monkeypatch.setattr(Board, "add", add)
    monkeypatch.setattr(job, "EVERY", 60.0)
    embed(tmp_path / "o", source, *FLAGS)
    assert most[0] == 8
    assert manifest.NAME in {path.stem for path in (tmp_path / "o").iterdir()}
