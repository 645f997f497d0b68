"""Tiny models of any architecture on disk, and the comparison of the sweeps: our vectors with theirs, text by text."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import quiet
from harness.random_models import miniature
from harness.supported_models import IN_PIECES, REFUSED, listed
from shared.jobs import Job, RaggedTokens
from support.in_pieces import run_in_steps
from support.tiny import CPU, DENSE, MULTI, dense_rows, raw, run, token_rows

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SUPPORTED = listed(PAGE.read_text())
TOLD = {kind: model.runs for kind, model in SUPPORTED.items()}
"""How the page says that a model type is served."""
CUT = {kind for kind, model in SUPPORTED.items() if model.long_texts == IN_PIECES}
"""Model types whose long texts the page says to be computed in pieces."""
LISTED = list(TOLD)
"""Model types: looking through all of transformers takes seconds."""
NOT_MADE = {"markuplm"}
"""Those of which sentence-transformers wants more files than a text model has."""
SERVED = [kind for kind in LISTED if TOLD[kind] != REFUSED and kind not in NOT_MADE]
SPECIAL = ("[PAD]", "[MASK]", "[SEP]", "[CLS]", "[UNK]")
TOLERANCE = 2e-5
"""Of the largest number of a vector."""
NEAR_TIES = {"dots3_note_text", "exaone_moe", "mistral_large4_text", "qwen3_moe", "qwen4_exp_text"}
"""They choose keys or experts among near ties, and may choose otherwise in the last bit: of a hundred texts one may lie
within a cosine of 0.999 instead. In a text of Qwen3 MoE the last expert that is chosen leads by 2.8e-7."""
MIXED = [random.Random(place).randint(1, 200) for place in range(200)]
EQUAL = [150] * 6 + [50] * 40
"""Words of texts."""
IN_FILE = ("attn_implementation", "output_attentions")
"""What config.json may say and transformers does not write."""


def sentences(lengths: Iterable[int]) -> list[str]:
    """Of so many words, up to two of which are special tokens."""
    generator = random.Random(5)
    found = []
    for length in lengths:
        words = [f"w{generator.randint(0, 850)}" for _ in range(length)]
        for _ in range(generator.randint(0, 2)):
            words[generator.randrange(len(words))] = generator.choice(SPECIAL)
        found.append(" ".join(words))
    return found


def change(file: Path, changed: Callable[[Any], None]) -> None:
    """A JSON file in place."""
    content = json.loads(file.read_text())
    changed(content)
    file.write_text(json.dumps(content))


def write(folder: Path, kind: str, tokenizer: Any = None, **options: Any) -> None:
    """As `miniature.write`, with what only a file may say."""
    with quiet():
        saved = {name: each for name, each in options.items() if name not in IN_FILE}
        miniature.write(folder, kind, tokenizer, **saved)
    told = {name: each for name, each in options.items() if name in IN_FILE}
    if told:
        change(folder / "config.json", lambda config: config.update(told))


def type_tokens(folder: Path, *, before: int = 0, body: int = 0, after: int = 0) -> None:
    """Makes the synthetic tokenizer give token types: of a text's first special token, of the text, of its last one."""

    def typed(file: Any) -> None:
        for piece, kind in zip(file["post_processor"]["single"], (before, body, after), strict=True):
            next(iter(piece.values()))["type_id"] = kind
        file["post_processor"]["pair"][-1]["SpecialToken"]["type_id"] = max(1, after)

    change(folder / "tokenizer.json", typed)
    name_token_types(folder)


def name_token_types(folder: Path) -> None:
    """As a tokenizer_config.json says that the tokenizer gives them."""
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    change(folder / "tokenizer_config.json", lambda config: config.update(names))


def theirs(folder: Path, texts: Sequence[str]) -> tuple[np.ndarray, list[list[int]]]:
    """Vectors and token ids of texts, one by one, by sentence-transformers. Raises what it raises."""
    with quiet():
        reference = SentenceTransformer(str(folder), device="cpu")
        limit = reference.max_seq_length or 256
        ids = [reference.tokenizer(text, truncation=True, max_length=limit)["input_ids"] for text in texts]
        return np.asarray(reference.encode(list(texts), batch_size=1, show_progress_bar=False)), ids


def compare(kind: str, folder: Path, lengths: Sequence[int]) -> Model:
    """Our vectors in steps of 30 texts, theirs text by text."""
    texts = sentences(lengths)
    expected, ids = theirs(folder, texts)
    model = load(str(folder), CPU)
    job = Job(id=1, work=raw(DENSE), tokens=RaggedTokens.of(ids))
    assert_near(kind, dense_rows(run(ModelEngine(model), [job], width=30)[0]), expected)
    return model


def compare_in_pieces(kind: str, folder: Path, lengths: Sequence[int], chunks: Sequence[int]) -> Model:
    """The same, and the rows of all tokens, with texts in pieces of at most so many tokens, in steps of random sizes
    and in three jobs."""
    texts = sentences(lengths)
    expected, ids = theirs(folder, texts)
    expected_rows = token_rows_of(folder, texts)
    engine = ModelEngine(load(str(folder), CPU))
    jobs = [Job(id=start, work=raw(DENSE, MULTI), tokens=RaggedTokens.of(ids[start::3])) for start in range(3)]
    for chunk in chunks:
        engine.cut_texts(PieceLimits(longest=chunk))
        found, found_rows = np.empty_like(expected), [np.empty(0)] * len(texts)
        for start, result in enumerate(run_in_steps(engine, jobs)):
            found[start::3] = dense_rows(result)
            found_rows[start::3] = token_rows(result)
        assert_near(kind, found, expected)
        assert [len(rows) for rows in found_rows] == [len(rows) for rows in expected_rows]
        assert_near(kind, np.concatenate(found_rows), np.concatenate(expected_rows))
    return engine.model


def token_rows_of(folder: Path, texts: Sequence[str]) -> list[np.ndarray]:
    """The rows [L, H] of each text's tokens, one text after the other, by sentence-transformers."""
    with quiet():
        reference = SentenceTransformer(str(folder), device="cpu")
        rows = reference.encode(list(texts), batch_size=1, show_progress_bar=False, output_value="token_embeddings")
        return [text_rows.numpy() for text_rows in rows]


def assert_near(kind: str, found: np.ndarray, expected: np.ndarray) -> None:
    """The one verdict."""
    wrong = np.abs(found - expected).max(axis=1) > TOLERANCE * max(1.0, np.abs(expected).max())
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert wrong.sum() <= (len(found) // 100 if kind in NEAR_TIES else 0)
    assert ((found * expected).sum(axis=1) / norms).min() >= 0.999
