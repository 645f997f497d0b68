"""Several commands and one folder: what fits together shares it, anything else is refused and harms nothing."""

from pathlib import Path

import pytest

from selvage.bulk import Failed
from support.bulk_fakes import embed, jsonl, rows

TEXTS = [f"text {i}" for i in range(40)]
FLAGS = ("--rows-per-shard", "5")


@pytest.fixture
def source(tmp_path: Path) -> str:
    return jsonl(tmp_path / "a.jsonl", TEXTS)


def test_a_restart_that_was_killed_leaves_no_row_twice(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the new manifest, before the old files went: the command without --restart goes on, and they go."""
    folder, other = tmp_path / "o", ("--rows-per-shard", "10")
    embed(folder, source, *FLAGS)

    def killed(path: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            embed(folder, source, *other, "--restart")
    assert len(list(folder.glob("part-*.parquet"))) == 8
    embed(folder, source, *other)
    assert [row["row"] for row in rows(folder)] == [*range(40)]
    assert len(list(folder.glob("part-*.parquet"))) == 4


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
        embed(folder, f"{folder}/*.parquet", *FLAGS)
    with pytest.raises(Failed, match=r"the input .*part-000000\.parquet is an output .* in quotes"):
        embed(folder, source, str(folder / "part-000000.parquet"), *FLAGS)


def test_a_folder_above_the_inputs_may_be_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `--output .`; outputs lie in the folder itself."""
    (tmp_path / "corpus").mkdir()
    jsonl(tmp_path / "corpus" / "a.jsonl", TEXTS)
    monkeypatch.chdir(tmp_path)
    for texts in (40, 0):
        assert embed(Path(), "corpus/*.jsonl", *FLAGS).texts == texts


def test_other_peoples_files_are_left_alone(source: str, tmp_path: Path) -> None:
    """Whatever was made of the shards, under names that begin as theirs."""
    folder = tmp_path / "o"
    embed(folder, source, *FLAGS)
    others = (
        "part-000003.faiss",
        "part-000003.centroids.parquet",
        "part-7.parquet",
        "part-000099.txt",
        "_bad-notes.jsonl",
    )
    for name in others:
        (folder / name).write_text("mine")
    (folder / "part-000099.parquet").write_text("of a command that was killed")
    embed(folder, source, *FLAGS)
    embed(folder, source, *FLAGS, "--restart")
    assert [name for name in others if not (folder / name).exists()] == []
    assert not (folder / "part-000099.parquet").exists()
