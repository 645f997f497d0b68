"""Killed at any moment, the command goes on: the same files as an undisturbed run, no row twice, no row lost."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selvage import errors
from selvage.bulk import Failed
from selvage.bulk import shards as shards_module
from selvage.bulk.shards import Draft
from support.bulk_fakes import FakeClient, contents, embed, jsonl, refuse_bad

TEXTS = [None if i % 11 == 5 else "" if i % 7 == 3 else "bad" if i % 13 == 1 else f"text {i}" for i in range(60)]
FLAGS = ("--rows-per-shard", "9", "--batch-size", "4", "--skip-errors", "--id-column", "id")


class Killed(BaseException):
    """As if the process had gone: nothing is written after it."""


def client() -> FakeClient:
    """Refuses texts that are "bad"."""
    made = FakeClient()
    made.script = refuse_bad
    return made


@contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """The disk takes so many steps (files opened, synced, renamed) more."""
    left = [steps]

    def counted(real: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*arguments, **options)

        return step

    opened: list[Draft] = []

    def noted(draft: Draft, path: Path, real: Any = Draft.__init__) -> None:
        real(draft, path)
        opened.append(draft)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module.os, "replace", counted(shards_module.os.replace))
        patch.setattr(shards_module.os, "fsync", counted(shards_module.os.fsync))
        patch.setattr(Draft, "__init__", counted(noted))
        patch.setattr(Draft, "discard", lambda _: None)  # whoever is killed tidies nothing
        with suppress(Killed):
            yield
    for draft in opened:
        draft.stream.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed run writes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    embed(folder / "o", jsonl(folder / "a.jsonl", TEXTS), *FLAGS, clients=[client()])
    return parts(folder / "o")


def parts(folder: Path) -> dict[str, Any]:
    """The files with vectors."""
    return {name: table for name, table in contents(folder).items() if name.startswith("part")}


@settings(max_examples=15)
@given(st.lists(st.integers(0, 80), min_size=1, max_size=3))
def test_killed_anywhere_it_ends_the_same(undisturbed: dict[str, Any], steps: list[int]) -> None:
    """At any step on the disk, up to three times."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        source = jsonl(folder / "a.jsonl", TEXTS)
        flags = (source, *FLAGS)
        for count in steps:
            with killed_after(count):
                embed(folder / "o", *flags, clients=[client()])
        embed(folder / "o", *flags, clients=[client()])
        assert parts(folder / "o") == undisturbed
        assert [path for path in (folder / "o").iterdir() if path.name.endswith(shards_module.SUFFIX)] == []


def test_finished_shards_are_not_sent_again(tmp_path: Path) -> None:
    """What a killed run had finished stays; the next one asks for the rest alone."""
    source = jsonl(tmp_path / "a.jsonl", [f"text {i}" for i in range(40)])
    flags = (source, "--rows-per-shard", "10")
    dying, left = FakeClient(), [2]
    finished = shards_module.Manifest.add_shard

    def last(self: Any, shard: Any) -> None:
        finished(self, shard)
        left[0] -= 1
        if not left[0]:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module.Manifest, "add_shard", last)
        with pytest.raises(Killed):
            embed(tmp_path / "o", *flags, clients=[dying])
    second = FakeClient()
    assert embed(tmp_path / "o", *flags, clients=[second]).texts == 20
    assert sorted(text for batch in second.sent for text in batch) == [f"text {i}" for i in range(20, 40)]
    third = FakeClient()
    assert embed(tmp_path / "o", *flags, clients=[third]).rows == 40
    assert third.sent == []


def test_several_commands_write_what_one_would(tmp_path: Path) -> None:
    """Each into a folder of its own, which another one of them may not have."""
    source = jsonl(tmp_path / "a.jsonl", [f"text {i}" for i in range(50)])
    flags = (source, "--rows-per-shard", "7")
    embed(tmp_path / "one", *flags)
    for index in (2, 0, 1):
        embed(tmp_path / f"{index}", *flags, "--shard", f"{index}/3")
    shares = [parts(tmp_path / f"{index}") for index in range(3)]
    assert sum(map(len, shares)) == 8
    assert shares[0] | shares[1] | shares[2] == parts(tmp_path / "one")
    with pytest.raises(Failed, match=r'other settings: --shard was "0/3", now it is "1/3"'):
        embed(tmp_path / "0", *flags, "--shard", "1/3")


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (("--dimensions", "2"), r"other settings: --dimensions was null, now it is 2"),
        (("--rows-per-shard", "8"), r"other settings: --rows-per-shard was 9, now it is 8"),
        (("--outputs", "dense,sparse"), r'other settings: --outputs was \["dense"\], now it is \["dense", "sparse"\]'),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, flags: tuple[str, ...], difference: str) -> None:
    """By the flag that differs; --restart begins anew."""
    source = jsonl(tmp_path / "a.jsonl", ["a", "b"])
    before = (source, "--rows-per-shard", "9")
    embed(tmp_path / "o", *before)
    with pytest.raises(Failed, match=rf"--output: .* was begun with {difference}"):
        embed(tmp_path / "o", *before, *flags)
    assert embed(tmp_path / "o", *before, *flags, "--restart").texts == 2
    assert embed(tmp_path / "o", *before, *flags).texts == 0


def test_settings_that_change_no_output_may_change(tmp_path: Path) -> None:
    """As after a bad row, or with other machines."""
    source = jsonl(tmp_path / "a.jsonl", ["a", "bad", "b"])
    with pytest.raises(Failed, match=r"a\.jsonl, row 2: INPUT_TOO_LONG: .* \(--skip-errors"):
        embed(tmp_path / "o", source, clients=[client()])
    flags = ("--skip-errors", "--batch-size", "1", "--in-flight", "2")
    summary = embed(tmp_path / "o", source, *flags, clients=[client()])
    assert (summary.rows, summary.bad) == (2, 1)


def test_another_model_or_input_is_refused(tmp_path: Path) -> None:
    """Vectors of two models, or of two texts, must not lie side by side."""
    source = jsonl(tmp_path / "a.jsonl", ["a", "b"])
    flags = (source,)
    embed(tmp_path / "o", *flags)
    other = [FakeClient(fingerprint="e" * 64)]
    with pytest.raises(Failed, match=r"another model: it was fake \(ffffffffffffffff\), now it is fake \(eeee"):
        embed(tmp_path / "o", *flags, clients=other)
    first = FakeClient()
    first.script = lambda *_: _raise(errors.Unavailable("gone"))
    with pytest.raises(Failed, match="fake:2: its model has the fingerprint eeee"):
        embed(tmp_path / "p", *flags, clients=[first, *other])
    jsonl(tmp_path / "a.jsonl", ["a", "c"])
    with pytest.raises(Failed, match=r"another .*a\.jsonl: its contents have changed"):
        embed(tmp_path / "o", *flags)
    with pytest.raises(Failed, match="other inputs: 1 files then, 2 now"):
        embed(tmp_path / "o", jsonl(tmp_path / "b.jsonl", ["d"]), *flags)


def _raise(error: Exception) -> None:
    raise error


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Shards that no manifest names, a manifest that is none, a command that is still writing."""
    source, folder = jsonl(tmp_path / "a.jsonl", ["a"]), tmp_path / "o"
    folder.mkdir()
    (folder / "part-000007.parquet").write_bytes(b"")
    with pytest.raises(Failed, match=r"holds part-000007\.parquet, which no manifest names"):
        embed(folder, source)
    embed(folder, source, "--restart")
    assert sorted(contents(folder)) == ["_manifest.json", "part-000000.parquet"]
    with shards_module.lock(folder / "_manifest.json"), pytest.raises(Failed, match="another command is writing to"):
        embed(folder, source)
    (folder / "_manifest.json").write_text("{")
    with pytest.raises(Failed, match="is no manifest of this command"):
        embed(folder, source)
