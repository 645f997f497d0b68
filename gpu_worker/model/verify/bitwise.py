"""Decides whether a text has the same bits alone and in any batch: `bitwise_invariant` on the card.

The rule: beside the processor's kernels, a step runs nothing but operators that compute each row, or each number, by
itself. Which operators run is seen in runs of the probes, whose rows must then have the same bits alone, among others
in any order, in pieces, and with tokens of other texts. What follows a model's heads, such as MaxSim, runs by the
kernels wherever there are any.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_worker.device.memory import ran_out
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse import SpladeHead
from gpu_worker.model.verify.in_pieces import Run, reason_against, run_in_pieces
from gpu_worker.model.verify.probes import Probes
from gpu_worker.model.verify.shared_prefixes import run_sharing
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

COMPARED = 4
"""Probes that are compared: the first ones, which are short."""
POWERS = (2, 3)
"""Exponents of powers that PyTorch makes by products of the number and itself."""
Rows = Mapping[str, Sequence[Tensor]]
"""Rows of each text of a batch, by the name of what made them."""
KERNELS = "selvage"
"""The namespace of our kernels' operators."""
BY_ROWS = frozenset(
    (
        # Numbers that are moved or made.
        *("view", "_unsafe_view", "reshape", "select", "slice", "split", "split_with_sizes", "transpose", "permute"),
        *("t", "numpy_T", "unsqueeze", "squeeze", "expand", "expand_as", "flatten", "unflatten", "unbind", "chunk"),
        *("cat", "stack", "contiguous", "clone", "copy", "to", "_to_copy", "type_as", "alias", "detach", "lift_fresh"),
        *("index", "index_select", "index_put", "gather", "flip", "embedding", "repeat_interleave", "masked_fill"),
        *("new_zeros", "new_empty", "new_full", "zeros", "empty", "full", "arange", "scalar_tensor", "as_strided"),
        *("dropout",),
        # Arithmetic that has one right result.
        *("add", "sub", "rsub", "mul", "div", "neg", "abs", "relu", "clamp", "maximum", "minimum", "sqrt", "where"),
        *("clamp_min", "scatter_reduce", "index_add"),
        # Sums of a row.
        *("layer_norm", "native_layer_norm", "rms_norm", "mean", "sum", "linalg_vector_norm", "norm"),
    )
)
"""Operators of PyTorch whose result for a row, or for a number, is the same whatever stands beside it.

Products are not among them, nor is attention."""
FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "gelu": torch.nn.functional.gelu,
    "log1p": torch.log1p,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "sin": torch.sin,
    "tanh": torch.tanh,
}
"""Functions of single numbers, some of which PyTorch computes otherwise at the end of a tensor and of a thread's part.
"""


def reason_for_other_bits(
    encoder: Encoder, heads: Heads, probes: Probes, library: KernelLibrary, *, cuts: bool, shares: bool
) -> str:
    """Why a text may have other bits among others than alone; empty where it has the same.

    `cuts`: texts may be computed in pieces; `shares`: they may share first tokens. May raise what means that memory ran
    out.
    """
    if encoder.device.type != "cpu":
        return f"on {encoder.device} products are chosen by the size of a step"
    if not library.formats:
        return f"products are not made by the processor's kernels: {library.missing}"
    runs: dict[str, Run] = {"among others": encoder}
    if isinstance(encoder, PackedEncoder):
        packed = encoder
        runs["layer by layer"] = lambda batch: packed.run_counting(batch)[0]
        if not reason_against(packed):
            runs |= {"in pieces": lambda batch: run_in_pieces(packed, batch)} if cuts else {}
            runs |= {"with tokens of another text": lambda batch: run_sharing(packed, batch)} if shares else {}
    try:
        with torch.inference_mode():
            _check(encoder, heads, probes, runs)
    except ModelRefused as refused:
        return str(refused)
    except Exception as error:  # a head's foreign code may not bear that its operators are noted
        if ran_out(error):
            raise
        return f"its operators cannot be seen: {first_line(error)}"
    return ""


def _check(encoder: Encoder, heads: Heads, probes: Probes, runs: Mapping[str, Run]) -> None:
    """Raises ModelRefused with the reason."""
    numbers, recorder = range(len(probes.texts))[:COMPARED], _Recorder()
    batches = [probes.batch([number], encoder) for number in numbers]
    with recorder:
        alone = [_rows(heads, encoder(batch), batch) for batch in batches]
    recorder.check()
    for way, run in runs.items():
        together = probes.batch(numbers[::-1], encoder)
        with recorder:
            rows = _rows(heads, run(together), together)
        recorder.check()
        for expected, place in zip(alone, reversed(numbers), strict=True):
            _compare(expected, rows, place, way)


class _Recorder(TorchDispatchMode):
    """Notes the operators that run, which stay as they are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._called: set[tuple[str, str, torch.dtype | None]] = set()

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        first = arguments[0] if arguments else None
        name = str(operator._schema.name).partition("::")[2].removesuffix("_")
        if name == "pow" and arguments[1] in POWERS:
            name = "mul"
        dtype = first.dtype if isinstance(first, Tensor) and name in FUNCTIONS else None
        self._called.add((operator.namespace, name, dtype))
        return operator(*arguments, **(options or {}))

    def check(self) -> None:
        """Raises ModelRefused where one of them may compute a row otherwise beside other rows."""
        for namespace, name, dtype in sorted(self._called, key=str):
            if namespace == KERNELS or (namespace == "aten" and name in BY_ROWS):
                continue
            if namespace != "aten" or dtype is None or not _is_even(name, dtype):
                raise ModelRefused(f"{namespace}::{name} may compute a row otherwise beside others")


@cache
def _is_even(name: str, dtype: torch.dtype) -> bool:
    """Whether PyTorch's function gives every number the same bits wherever it stands, found on numbers of all usual
    sizes. In half precision functions that differ in float32 round to the same numbers but for a few, so float32 counts
    too."""
    if dtype in (torch.bfloat16, torch.float16) and not _is_even(name, torch.float32):
        return False
    function, generator = FUNCTIONS[name], torch.Generator().manual_seed(0)
    x = torch.randn(4096, generator=generator) * torch.logspace(-3, 1, 4096)
    x = torch.cat([x, x.abs()]).to(dtype)  # some functions take positive numbers only
    whole, spread = function(x), function(x.repeat_interleave(2)[::2])
    parts = torch.cat([function(part) for part in x.split(15)])
    return all(torch.equal(other.nan_to_num(), whole.nan_to_num()) for other in (spread, parts))


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


def _compare(alone: Rows, together: Rows, place: int, way: str) -> None:
    for name, (expected,) in alone.items():
        rows = together[name][place]
        if not torch.equal(rows, expected):
            distance = float((rows.float() - expected.float()).abs().max())
            raise ModelRefused(f"its {name} differ alone and {way} by up to {distance:.2g}")
