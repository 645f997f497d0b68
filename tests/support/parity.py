"""Whole models against transformers: what it gives for one text after the other, and the one verdict of the table.

The reference runs the unmodified class with its own attention by default; nothing of gpu_worker takes part in it.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
)

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.repository.recipe import POOLINGS, WeightsOf
from gpu_worker.repository.weights import CLASSES, ENCODERS, class_of
from harness.random_models import synthetic
from shared.jobs import Classify, Job, JobResult, RaggedTokens
from support.tiny import (
    DENSE,
    MULTI,
    SPARSE,
    dense_rows,
    random_ids,
    raw,
    reader,
    run,
    scores,
    sparse_rows,
    token_rows,
    write_encoder,
    write_json,
)

TOLERANCE = 2e-5
NOISE_RATIO = 3.0
HALF_RATIO = 1.5
YES, NO = "yes", "no"
TINY = sorted(name for name in synthetic.SHAPES if name.startswith("tiny-"))
DECODERS = ("qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3")
SEVERAL_LABELS = ("tiny-bert", "tiny-deberta-v2", "tiny-eurobert", "tiny-qwen3")
"""Families whose classifiers read the first row, a pooler's, every row, the last."""
LONG = [1, 2, 3, 17, 17, 33, 64, 5, 180, 400]
"""Longer than every window, together longer than the positions of a model."""
MANY = [1 + number * 7 % 23 for number in range(80)]
"""Beside them where a text gives few numbers, for a root mean square that means something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One column of the table: the class that gives it, and how many labels it has."""

    weights_of: WeightsOf
    labels: int = 0

    def covers(self, name: str) -> bool:
        """Whether transformers has such a class for a family, and the family is asked so."""
        config, _ = synthetic.shape_of(name)
        if self.labels > 1 and self.weights_of == "sequence-classification":
            return name in SEVERAL_LABELS
        if self.weights_of == "causal-lm":
            return name.removeprefix("tiny-") in DECODERS
        if config.model_type in ENCODERS and self.weights_of == "sequence-classification":
            return False  # its head reads the decoder
        mapping = {
            "masked-lm": MODEL_FOR_MASKED_LM_MAPPING,
            "sequence-classification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
            "token-classification": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
        }.get(self.weights_of)
        return mapping is None or type(config) in mapping


OUTPUTS = {
    "vectors": Output(weights_of="encoder"),
    "splade": Output(weights_of="masked-lm"),
    "cross-encoder": Output(weights_of="sequence-classification", labels=1),
    "labels": Output(weights_of="sequence-classification", labels=3),
    "token labels": Output(weights_of="token-classification", labels=3),
    "yes-no": Output(weights_of="causal-lm", labels=1),
}
TABLE = [(name, output) for name in TINY for output in OUTPUTS if OUTPUTS[output].covers(name)]


def write(folder: Path, name: str, output: str) -> None:
    """A repository for a cell of the table, as transformers and sentence-transformers write it."""
    column = OUTPUTS[output]
    write_encoder(folder, name, column.weights_of, labels=column.labels if column.weights_of != "causal-lm" else 0)
    if output == "vectors":
        modules = [{"name": "0", "type": "sentence_transformers.models.Transformer", "path": ""}]
        modules.append({"name": "1", "type": "sentence_transformers.models.Pooling", "path": "1_Pooling"})
        pooling = {"pooling_mode": list(POOLINGS), "embedding_dimension": 64}
        write_json(folder, modules=modules, **{"1_Pooling__config": pooling})
    if output == "yes-no":
        modules = [{"name": "0", "type": "sentence_transformers.models.Transformer", "path": ""}]
        modules.append(
            {"name": "1", "type": "sentence_transformers.cross_encoder.modules.LogitScore", "path": "1_LogitScore"}
        )
        ids = dict(zip(("true_token_id", "false_token_id"), _places(), strict=True))
        task = {"transformer_task": "text-generation"}
        write_json(folder, modules=modules, sentence_bert_config=task, **{"1_LogitScore__config": ids})


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Token ids, and where the second text of a pair begins in each (0: nowhere)."""

    ids: list[list[int]]
    seconds: list[int]

    @classmethod
    def of(cls, name: str, output: str, dtype: str) -> "Texts":
        """Those of a cell; classifiers of BERT's kind get pairs."""
        few = output in ("cross-encoder", "labels", "yes-no") and dtype != "float32"
        lengths = LONG + MANY if few else LONG
        config, _ = synthetic.shape_of(name)
        paired = OUTPUTS[output].weights_of == "sequence-classification" and has_segments(config)
        seconds = [length // 3 if paired else 0 for length in lengths]
        return cls(ids=random_ids(lengths, seed=len(name)), seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Repositories of cells, their models and their oracles, each made once a run."""

    folder: Callable[[str, str], Path]
    engine: Callable[[str, str, str], ModelEngine]
    oracle: Callable[[str, str, str], "Oracle"]


def has_segments(config: Any) -> bool:
    """Whether the family tells the second text of a pair apart."""
    forward = CLASSES["encoder"]._model_mapping[type(config)].forward
    return getattr(config, "type_vocab_size", 0) > 1 and "token_type_ids" in inspect.signature(forward).parameters


class Oracle:
    """What transformers says of a repository."""

    def __init__(self, folder: Path, output: str, dtype: torch.dtype) -> None:
        self._output, self._column = output, OUTPUTS[output]
        config = AutoConfig.from_pretrained(folder)
        self._model = class_of(config, self._column.weights_of).from_pretrained(
            folder, dtype=dtype, local_files_only=True
        )
        self._model.eval()
        self.yes, self.no = _places()

    def one_by_one(self, texts: Texts) -> list[Tensor]:
        """Numbers of each text in float32, alone."""
        return [self._numbers([ids], [second])[0] for ids, second in zip(texts.ids, texts.seconds, strict=True)]

    def padded(self, texts: Texts, at_once: int = 16) -> list[Tensor]:
        """The same from padded batches: how far transformers is from itself."""
        numbers: list[Tensor] = []
        for start in range(0, len(texts.ids), at_once):
            chosen = slice(start, start + at_once)
            numbers += self._numbers(texts.ids[chosen], texts.seconds[chosen])
        return numbers

    @torch.inference_mode()
    def _numbers(self, ids: list[list[int]], seconds: list[int]) -> list[Tensor]:
        longest, padding = max(map(len, ids)), self._model.config.pad_token_id or 0
        rows = torch.full((len(ids), longest), padding)
        mask, types = torch.zeros_like(rows), torch.zeros_like(rows)
        for row, (text, second) in enumerate(zip(ids, seconds, strict=True)):
            rows[row, : len(text)], mask[row, : len(text)] = torch.tensor(text), 1
            if second:
                types[row, second : len(text)] = 1
        inputs = {"input_ids": rows, "attention_mask": mask} | ({"token_type_ids": types} if any(seconds) else {})
        output = self._model(**inputs, return_dict=True)
        whole = (output.last_hidden_state if self._output == "vectors" else output.logits).float()
        return [self._of_one(whole[row], len(text)) for row, text in enumerate(ids)]

    def _of_one(self, rows: Tensor, length: int) -> Tensor:
        """What the worker should say of one text; rows are [longest, ..], or [labels] of a classifier."""
        match self._output:
            case "vectors":
                return torch.cat([_pooled(rows[:length]), rows[:length].flatten()])
            case "splade":
                return rows[:length].relu().amax(dim=0).log1p()
            case "token labels":
                return rows[:length].flatten()
            case "yes-no":
                return (rows[length - 1, self.yes] - rows[length - 1, self.no])[None]
        return rows


@cache
def _places() -> tuple[int, int]:
    """Vocabulary ids of yes and no."""
    made = reader()
    return made.convert_tokens_to_ids(YES), made.convert_tokens_to_ids(NO)


def _pooled(rows: Tensor) -> Tensor:
    """One text's rows [L, H] in every way, in the order of `POOLINGS`."""
    weights = torch.arange(1, len(rows) + 1)[:, None]
    ways = {
        "cls": rows[0],
        "max": rows.amax(dim=0),
        "mean": rows.mean(dim=0),
        "mean_sqrt_len_tokens": rows.sum(dim=0) / len(rows) ** 0.5,
        "weightedmean": (rows * weights).sum(dim=0) / weights.sum(),
        "lasttoken": rows[-1],
    }
    return torch.cat([ways[mode] for mode in POOLINGS])


Run = Callable[[ModelEngine, list[Job]], list[JobResult]]
"""Computes jobs."""


def ours(engine: ModelEngine, output: str, texts: Texts, compute: Run = run) -> list[Tensor]:
    """The same numbers by the worker, dealt out to three jobs: by default all texts in one step."""
    work = {
        "vectors": raw(DENSE, MULTI),
        "splade": raw(SPARSE),
        "token labels": Classify(tokens=True),
    }.get(output, Classify())
    hands = [range(start, len(texts.ids), 3) for start in range(3)]
    jobs = [
        Job(
            id=number,
            work=work,
            tokens=RaggedTokens.of([texts.ids[each] for each in hand]),
            second_segments=tuple(texts.seconds[each] for each in hand),
        )
        for number, hand in enumerate(hands)
        if hand
    ]
    found: dict[int, Tensor] = {}
    for hand, result in zip(hands, compute(engine, jobs), strict=False):
        for each, numbers in zip(hand, _numbers_of(result, output), strict=True):
            found[each] = torch.from_numpy(numbers.copy()).flatten()
    return [found[each] for each in range(len(texts.ids))]


def _numbers_of(result: JobResult, output: str) -> list[np.ndarray]:
    if output == "vectors":
        pairs = zip(dense_rows(result), token_rows(result), strict=True)
        return [np.concatenate([dense, tokens.ravel()]) for dense, tokens in pairs]
    if output == "splade":
        return list(sparse_rows(result))
    logits = scores(result, max(1, OUTPUTS[output].labels))
    return list(np.split(logits, np.cumsum(result.row_lengths)[:-1])) if output == "token labels" else list(logits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A cell's reference: exact numbers in float32, its own run in the number format, its own padding noise."""

    exact: list[Tensor]
    own: list[Tensor]
    noise: float

    @classmethod
    @cache
    def of(cls, tables: Tables, name: str, output: str, dtype: str) -> "Expected":
        """Made once: a mistake's control meets what its cell met."""
        texts, precise = Texts.of(name, output, dtype), tables.oracle(name, output, "float32")
        exact = precise.one_by_one(texts)
        if dtype == "float32":
            pairs = zip(exact, precise.padded(texts), strict=True)
            noise = max(float((one - padded).abs().max()) for one, padded in pairs)
            return cls(exact=exact, own=exact, noise=noise)
        return cls(exact=exact, own=tables.oracle(name, output, dtype).one_by_one(texts), noise=0.0)


def assert_parity(found: list[Tensor], expected: Expected, dtype: str) -> None:
    """The verdict of every cell and of every negative control.

    float32: each number within 2e-5 x max(1, |reference|), or three times transformers' own padding noise.
    bfloat16: no further from float32, in root mean square, than 1.5 times transformers' own bfloat16.
    """
    assert [each.shape for each in found] == [each.shape for each in expected.exact]
    numbers, exact, own = (torch.cat(each) for each in (found, expected.exact, expected.own))
    assert torch.isfinite(numbers).all()
    if dtype == "float32":
        assert expected.noise < 1e-3, "a reference that pads so badly proves nothing"
        allowed = (TOLERANCE * exact.abs().clamp(min=1)).clamp(min=NOISE_RATIO * expected.noise)
        worst = ((numbers - exact).abs() / allowed).max()
        assert worst <= 1, f"{float(worst):.3g} times the tolerance"
        return
    distance, theirs = ((each - exact).square().mean().sqrt() for each in (numbers, own))
    assert distance <= HALF_RATIO * theirs, f"{distance / theirs:.3g} times transformers' own distance"
