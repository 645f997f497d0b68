"""Several commands and one folder: what fits together shares it, anything else is refused and harms nothing."""

import io
from pathlib import Path
from typing import Any

import pytest

from selvage import errors
from selvage.bulk import manifest, row_blocks, target_thread
from selvage.bulk.batch_queue import BatchQueue
from selvage.bulk.failures import Failed
from selvage.bulk.flags import parse
from selvage.bulk.job import run
from selvage.bulk.meter import Meter
from selvage.bulk.row_blocks import RowBlock
from support.bulk_fakes import FakeService, contents, embed, jsonl, rows

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
        (("--shard", "1/3"), "f", "--shard I/2, not I/3"),
        ((), "f", "--shard I/2, not I/1"),
        (("--restart",), "f", "--shard I/2, not I/1"),
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
    with pytest.raises(Failed, match=rf"is shared with _manifest-0-of-2\.json, which was begun with {told}"):
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
    with pytest.raises(Failed, match=r"the input .*part-000000\.rows\.jsonl is an output .* in quotes"):
        embed(folder, source, str(folder / "part-000000.rows.jsonl"), *FLAGS)


def test_a_folder_above_the_inputs_may_be_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `--output .`; outputs lie in the folder itself."""
    (tmp_path / "corpus").mkdir()
    jsonl(tmp_path / "corpus" / "a.jsonl", TEXTS)
    monkeypatch.chdir(tmp_path)
    for texts in (40, 0):
        assert embed(Path(), "corpus/*.jsonl", *FLAGS).texts == texts


def test_a_target_may_stay_away_for_long(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of tries, and then it is back."""
    monkeypatch.setattr(target_thread, "LONGEST", 0.0)
    away, tries = FakeService(), []

    def refuse(*_: Any) -> None:
        tries.append(1)
        if len(tries) < 1500:
            raise errors.Unavailable("refused")

    away.script = refuse
    assert embed(tmp_path / "o", source, *FLAGS, "--patience", "60", services=[away]).rows == 40


def test_small_shards_leave_no_target_idle(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are counted that are under way, not the blocks that shards cut them into."""
    most = [0]

    def add_block(queue: BatchQueue, block: RowBlock, real: Any = BatchQueue.add_block) -> None:
        real(queue, block)
        most[0] = max(most[0], len(queue._blocks))

    monkeypatch.setattr(BatchQueue, "add_block", add_block)
    embed(tmp_path / "o", source, *FLAGS)
    assert most[0] == 8


def test_long_texts_leave_no_target_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that letters fill counts as full, not as more: the next one is read while it is computed."""
    monkeypatch.setattr(row_blocks, "LETTERS", 100)
    most = [0]

    def add_block(queue: BatchQueue, block: RowBlock, real: Any = BatchQueue.add_block) -> None:
        real(queue, block)
        most[0] = max(most[0], len(queue._blocks))

    monkeypatch.setattr(BatchQueue, "add_block", add_block)
    embed(tmp_path / "o", jsonl(tmp_path / "a.jsonl", ["x" * 61] * 12), "--format", "npy")
    assert most[0] == 2


def test_other_peoples_files_are_left_alone(source: str, tmp_path: Path) -> None:
    """Whatever was made of the shards, under names that begin as theirs."""
    folder = tmp_path / "o"
    embed(folder, source, *FLAGS)
    others = ("part-000003.faiss", "part-000003.centroids.npy", "part-7.parquet", "part-000099.txt", "_bad-notes.jsonl")
    for name in others:
        (folder / name).write_text("mine")
    (folder / "part-000099.rows.jsonl").write_text("of a command that was killed")
    embed(folder, source, *FLAGS)
    embed(folder, source, *FLAGS, "--restart")
    assert [name for name in others if not (folder / name).exists()] == []
    assert not (folder / "part-000099.rows.jsonl").exists()


def test_of_two_that_begin_at_once_one_sees_the_other(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither had a manifest when the other looked first."""
    folder, real = tmp_path / "o", manifest.Manifest.save
    embed(tmp_path / "p", source, *FLAGS, "--shard", "0/2")
    theirs = (tmp_path / "p" / "_manifest-0-of-2.json").read_text()

    def save(mine: manifest.Manifest) -> None:
        (folder / "_manifest-0-of-2.json").write_text(theirs)
        real(mine)

    monkeypatch.setattr(manifest.Manifest, "save", save)
    with pytest.raises(Failed, match="--shard I/2, not I/3"):
        embed(folder, source, *FLAGS, "--shard", "1/3")
    assert [*contents(folder)] == ["_manifest-0-of-2.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"shards": []}', '{"shards": [], "settings": {"--shard": 1}}'])
def test_a_manifest_of_somebody_else_is_told(source: str, tmp_path: Path, text: str) -> None:
    """Of another command it refuses the folder, with any flag; one's own may be thrown away."""
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "_manifest-0-of-2.json").write_text(text)
    with pytest.raises(Failed, match=r"_manifest-0-of-2\.json is no manifest of this command: .*--restart begins anew"):
        embed(tmp_path / "o", source, *FLAGS, "--shard", "0/2")
    for flags in ((), ("--restart",)):
        with pytest.raises(Failed, match=r"begun with something else: .*; take another folder, or empty this one"):
            embed(tmp_path / "o", source, *FLAGS, "--shard", "1/2", *flags)
    embed(tmp_path / "o", source, *FLAGS, "--shard", "0/2", "--restart")


def test_a_command_without_a_stream_says_which_limit_and_waits(source: str, tmp_path: Path) -> None:
    """Not for its patience alone: others of the same caller have the streams, and are answered. It says so once."""
    service, lines = FakeService(), io.StringIO()
    limit = "12 streams are open, the limit is 12"

    def full(_: Any, sent: int) -> None:
        if sent < 3:
            raise errors.Overloaded(limit, retry_after=0.0)

    service.script = full
    options = parse([source, *FLAGS, "--output", str(tmp_path / "o"), "--patience", "0"])
    assert run(options, [service], Meter(lines)).rows == len(TEXTS)
    assert lines.getvalue() == f"fake:1 has no stream left: {limit}; it goes on when another stream ends\n"
