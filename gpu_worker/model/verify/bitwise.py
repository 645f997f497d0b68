"""Decides whether a text has the same bits alone and in any batch: `bitwise_invariant` on the card.

The rule: the model runs whole by the processor's kernels, or looks up rows of a table; so do the products of its heads,
which have nothing that PyTorch computes otherwise among other rows. Short probes are then compared alone, among others
in any order, and in pieces that attend to tokens of other texts, too. What follows the heads, such as MaxSim, runs by
the kernels.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.kernels.cpu import library
from gpu_worker.model.encoder.encoder import Encoder, Run, StaticEncoder
from gpu_worker.model.heads.heads import CutRows, Heads, SpladeHead, Unit
from gpu_worker.model.native.native_model import NativeEncoder
from gpu_worker.model.tune.linear import EvenGelu, NativeLinear
from gpu_worker.model.verify.piece_check import run_in_pieces
from gpu_worker.model.verify.probes import Probes
from gpu_worker.ragged.batch import RaggedBatch

NOT_NATIVE = "its layers do not run whole by the processor's kernels"
"""Why texts may have other bits among others, where that is known without a run."""
COMPARED = 5
"""Probes that are compared: the first ones, which are short."""
EVEN = (
    *(NativeLinear, EvenGelu, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity, nn.ReLU, nn.Tanh),
    *(Unit, CutRows),
)
"""Modules that compute a row from itself alone, whatever stands beside it. PyTorch makes products by the number of
rows, and the last numbers of a tensor's GELU, SiLU or sigmoid by another function than the others."""
GELU_OF_A_CLASS = re.compile(r"(?<![\w.])gelu\(")
"""A call of PyTorch's GELU in the code of a head's class."""
Rows = Mapping[str, Sequence[Tensor]]
"""Rows of each text of a batch, by the name of what made them."""


def reason_for_other_bits(encoder: Encoder, heads: Heads, probes: Probes, *, pieces: bool) -> str:
    """Why a text may have other bits among others than alone; empty where it has the same. `pieces`: texts may be
    computed in pieces, or behind others that begin alike."""
    if not isinstance(encoder, NativeEncoder | StaticEncoder):
        return NOT_NATIVE
    if encoder.device.type != "cpu" or not library.load().formats:
        return "what follows its hidden states does not run by the processor's kernels"
    for module in (part for head in heads.modules() for part in head.modules()):
        if not _is_even(module):
            return f"its head has a {type(module).__name__}, which PyTorch computes"
    runs: dict[str, Run] = {"among others": encoder}
    runs |= {"in pieces": partial(run_in_pieces, encoder)} if pieces else {}
    numbers = range(len(probes.texts))[:COMPARED]
    with torch.inference_mode():
        batches = [probes.batch([number], encoder) for number in numbers]
        rows_alone = [_rows(heads, encoder(batch), batch) for batch in batches]
        mixed = probes.batch(numbers[::-1], encoder)
        for way, run in runs.items():
            rows = _rows(heads, run(mixed), mixed)
            for name, number in product(rows, numbers):
                (expected,), actual = rows_alone[number][name], rows[name][-1 - number]
                if not torch.equal(actual, expected):
                    distance = float((actual.float() - expected.float()).abs().max())
                    return f"its {name} differ alone and {way} by up to {distance:.2g}"
    return ""


def _is_even(module: nn.Module) -> bool:
    """Whether a module of a head, apart from those inside of it, computes each row from itself alone."""
    is_own_class = type(module).__module__.startswith("gpu_worker.")  # its own products run by the kernels of rows
    if is_own_class or isinstance(module, (*EVEN, nn.Sequential)):
        return True
    try:
        return any(module.children()) and not GELU_OF_A_CLASS.search(inspect.getsource(type(module)))
    except (OSError, TypeError):  # no source to look into
        return False


def _rows(heads: Heads, hidden: Tensor, batch: RaggedBatch) -> Rows:
    """Hidden states and rows of all heads that a model has."""
    rows: dict[str, Sequence[Tensor]] = {"hidden states": hidden.split(batch.lengths)}
    if heads.dense is not None:
        rows["vectors"] = heads.dense(hidden, batch).split(1)
    if heads.multi_vector is not None:
        rows["token vectors"] = heads.multi_vector(hidden).split(batch.lengths)
    if isinstance(heads.sparse, SpladeHead):
        texts = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
        rows["sparse weights"] = heads.sparse(hidden, torch.from_numpy(texts), len(batch.lengths)).split(1)
    elif heads.sparse is not None:
        rows["sparse weights"] = heads.sparse(hidden).split(batch.lengths)
    if heads.classifier is not None:
        rows["logits"] = heads.classifier(hidden, batch).split(1)
    if heads.token_classifier is not None:
        rows["logits of tokens"] = heads.token_classifier(hidden).split(batch.lengths)
    return rows
