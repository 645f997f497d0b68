"""The heads of one model: vectors of texts and of tokens, weights of vocabulary ids, logits. Tensors without I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from gpu_worker.device.transfer import Upload
from gpu_worker.kernels.rows.row_kernels import PoolRows
from gpu_worker.model.heads.pooling import plan_pooling, pool
from gpu_worker.ragged.batch import Counts, RaggedBatch
from gpu_worker.ragged.texts import PackedTexts

CHUNK_ELEMENTS = 16 * 1024 * 1024
"""Most logits of a masked-LM head in memory at once: 64 MiB in float32, whatever the step and the vocabulary."""
LATE = "late"
"""Pooling of logits: the head reads every row, and a text's logits are their mean (EuroBERT, arXiv:2503.05500)."""
LAST_REAL = "last that is not padding"
"""The last row whose token id is not the padding id, as decoders of transformers choose it.

Where the padding id also ends texts, that is the row before the end."""
ToLogits = Callable[[Tensor], Tensor]
"""Computes logits on the device: hidden [T, H] -> [n, labels] float32."""


class DenseHead(nn.Module):
    """Pools token rows and runs the pooled rows through layers, in float32."""

    def __init__(self, poolings: Sequence[str], layers: nn.Sequential, width: int) -> None:
        """`width` is the number of dimensions of a vector."""
        super().__init__()
        self.poolings, self.layers, self.width = tuple(poolings), layers, width

    def plan(self, starts: Counts, lengths: Counts, skip: Counts, upload: Upload) -> Callable[[Tensor], Tensor]:
        """Prepares what maps hidden [T, H] to [n, width] float32, for n texts that lie as in `plan_pooling`."""
        pool_rows = plan_pooling(starts, lengths, skip, self.poolings, upload)
        return lambda hidden: self.layers(pool_rows(hidden))

    def forward(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """Pools and projects: hidden [T, H] -> [S, width] float32, of all texts of a batch."""
        output: Tensor = self.layers(pool(hidden, batch, self.poolings))
        return output


class MultiVectorHead(nn.Module):
    """Projects all token rows of a step in one product."""

    def __init__(self, layers: nn.Sequential, width: int, *, skip_first: bool, mean: bool) -> None:
        """`skip_first`: the first token of a text gets no vector. `mean`: scores are means over query tokens."""
        super().__init__()
        self.layers, self.width = layers, width
        self.skip_first, self.mean = skip_first, mean

    def forward(self, hidden: Tensor) -> Tensor:
        """Projects token vectors: hidden [T, H] -> [T, width] of the same type, not normalised."""
        output: Tensor = self.layers(hidden)
        return output


class SpladeHead(nn.Module):
    """log(1 + relu(logit)) of a masked-LM head, maximum or sum over a text's tokens (SPLADE, arXiv:2109.10086).

    The logits of all tokens of a step would take gigabytes, so they are computed and reduced chunk by chunk. The
    maximum is taken before the logarithm: the result is the same, and far fewer logarithms are needed.
    """

    def __init__(self, head: "TransformersHead", vocabulary: int, *, strategy: str, logs: int) -> None:
        """`strategy` is max or sum. The logarithm is taken `logs` times: 2 for OpenSearch (arXiv:2504.14839)."""
        super().__init__()
        self.head, self.vocabulary = head, vocabulary
        self.strategy, self.logs = strategy, logs

    def forward(self, rows: Tensor, text_of_row: Tensor, count: int) -> Tensor:
        """Weights [N, vocabulary] float32 of N = `count` texts from rows [T, H] of the texts `text_of_row` [T]."""
        best = rows.new_zeros(count, self.vocabulary, dtype=torch.float32)
        step = max(1, CHUNK_ELEMENTS // self.vocabulary)
        for start in range(0, len(rows), step):
            logits = self.head(rows[None, start : start + step])[0].float()
            texts = text_of_row[start : start + step]
            if self.strategy == "max":  # starts from zeros, so this is the relu as well
                best.scatter_reduce_(0, texts[:, None].expand_as(logits), logits, reduce="amax")
            else:
                best.index_add_(0, texts, self._log(logits.relu_()))
        return self._log(best) if self.strategy == "max" else best

    def _log(self, weights: Tensor) -> Tensor:
        for _ in range(self.logs):
            weights = weights.log1p_()
        return weights


class LexicalHead(nn.Module):
    """One weight a token: the relu of a linear layer (BGE-M3, arXiv:2402.03216)."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, hidden: Tensor) -> Tensor:
        """Weights of tokens: hidden [T, H] -> [T] float32."""
        output: Tensor = self.layers(hidden)
        return output.float().relu().squeeze(1)


class SequenceClassifier(nn.Module):
    """Logits of whole texts."""

    def plan(self, batch: PackedTexts, places: Counts, upload: Upload) -> ToLogits:
        """Prepares on the host what computes the logits of the texts at `places` [n] of the batch."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, batch: PackedTexts) -> Tensor:
        """Logits of all texts of a batch: hidden [T, H] -> [S, labels] float32."""
        upload = Upload(hidden.device)
        to_logits = self.plan(batch, np.arange(len(batch.lengths)), upload)
        upload.send()
        return to_logits(hidden)


class HeadClassifier(SequenceClassifier):
    """A transformers ForSequenceClassification. `pooling` says which rows it reads: cls, mean, lasttoken, LAST_REAL or
    LATE."""

    def __init__(self, head: "TransformersHead", pooling: str, padding: int | None = None) -> None:
        """`padding` is the id of the model's padding token."""
        super().__init__()
        self.head, self.pooling, self.padding = head, pooling, padding

    def plan(self, batch: PackedTexts, places: Counts, upload: Upload) -> ToLogits:
        if self.pooling == LATE:
            mean = _pooling(batch, places, "mean", upload)
            return lambda hidden: mean(self.head(hidden[:, None]))
        if self.pooling == LAST_REAL:
            last = upload.add_array(self._last_real(batch)[places])
            return lambda hidden: self.head(hidden.index_select(0, last.tensor)[:, None]).float()
        pooled = _pooling(batch, places, self.pooling, upload)
        return lambda hidden: self.head(pooled(hidden).to(hidden.dtype)[:, None]).float()

    def _last_real(self, batch: PackedTexts) -> Counts:
        """Rows [S] of each text's last token that is not padding; the first row of a text of padding alone."""
        starts, rows = batch.offsets[:-1], np.arange(batch.total)
        real: Counts = np.where(batch.tokens == self.padding, -1, rows)
        return np.maximum(np.maximum.reduceat(real, starts), starts)


class PooledClassifier(SequenceClassifier):
    """Layers over pooled rows: a CrossEncoder that consists of sentence-transformers modules."""

    def __init__(self, dense: DenseHead) -> None:
        super().__init__()
        self.dense = dense

    def plan(self, batch: PackedTexts, places: Counts, upload: Upload) -> ToLogits:
        starts, lengths = batch.offsets[places], np.diff(batch.offsets)[places]
        return self.dense.plan(starts, lengths, np.zeros_like(lengths), upload)


class YesNoClassifier(SequenceClassifier):
    """Log-odds of two tokens as the next one after a text (Qwen3-Reranker, arXiv:2506.05176).

    Two rows of the output matrix suffice; logits of the whole vocabulary are never computed.
    """

    def __init__(self, rows: Tensor, softcap: float | None) -> None:
        """`rows` of the output matrix: [2, H] for yes and no, [1, H] for yes alone. `softcap` is Gemma2's bound."""
        super().__init__()
        self.linear = nn.Linear(rows.shape[1], len(rows), bias=False, device=rows.device)
        self.linear.load_state_dict({"weight": rows})
        self.softcap = softcap

    def plan(self, batch: PackedTexts, places: Counts, upload: Upload) -> ToLogits:
        last = _pooling(batch, places, "lasttoken", upload)
        return lambda hidden: self._odds(last(hidden))

    def _odds(self, last: Tensor) -> Tensor:
        """Computes the log-odds of the last rows: [n, H] float32 -> [n, 1]."""
        logits: Tensor = self.linear(last)
        if self.softcap is not None:
            logits = (logits / self.softcap).tanh() * self.softcap
        return logits[:, :1] - logits[:, 1:] if logits.shape[1] == 2 else logits


class RescaledClassifier(SequenceClassifier):
    """The logits of another classifier, less `mean`, by `sigma`."""

    def __init__(self, classifier: SequenceClassifier, mean: float, sigma: float) -> None:
        super().__init__()
        self.classifier, self.mean, self.sigma = classifier, mean, sigma

    def plan(self, batch: PackedTexts, places: Counts, upload: Upload) -> ToLogits:
        logits = self.classifier.plan(batch, places, upload)
        return lambda hidden: (logits(hidden) - self.mean) / self.sigma


def _pooling(batch: PackedTexts, places: Counts, mode: str, upload: Upload) -> PoolRows:
    lengths = np.diff(batch.offsets)[places]
    return plan_pooling(batch.offsets[places], lengths, np.zeros_like(lengths), (mode,), upload)


class TokenClassifier(nn.Module):
    """Logits of single tokens, by a transformers ForTokenClassification or by layers."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, rows: Tensor) -> Tensor:
        """Computes logits of pooled rows: rows [N, H] -> [N, labels] float32."""
        output: Tensor = self.head(rows[None])
        return output[0].float()


class Dense(nn.Module):
    """activation(x W^T + b) + residual(x): sentence-transformers' and PyLate's Dense, [N, in] -> [N, out]."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, residual: nn.Module | None) -> None:
        """`residual` maps the input to the summand; None adds nothing."""
        super().__init__()
        self.linear, self.activation, self.residual = linear, activation, residual

    def forward(self, rows: Tensor) -> Tensor:
        output: Tensor = self.activation(self.linear(rows))
        return output if self.residual is None else output + self.residual(rows)


class Unit(nn.Module):
    """Scales rows to unit length; a row of zeros stays."""

    def forward(self, rows: Tensor) -> Tensor:
        return F.normalize(rows, dim=-1)


class CutRows(nn.Module):
    """Keeps the first `width` numbers of each row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, rows: Tensor) -> Tensor:
        return rows[:, : self.width]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads that a model has; None stands for those that it lacks."""

    dense: DenseHead | None = None
    multi_vector: MultiVectorHead | None = None
    sparse: SpladeHead | LexicalHead | None = None
    classifier: SequenceClassifier | None = None
    token_classifier: TokenClassifier | None = None

    def modules(self) -> list[nn.Module]:
        """All heads that the model has."""
        heads = (self.dense, self.multi_vector, self.sparse, self.classifier, self.token_classifier)
        return [head for head in heads if isinstance(head, nn.Module)]


class EncoderOutput(BaseModelOutputWithPooling):
    """The output of an encoder. Fields that a family adds (XLNet's memories, Luke's entities) read as None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class EncoderStandIn(nn.Module):
    """Takes the place of the encoder in a head's class, and returns the hidden states that it is called with.

    Heads of some families look things up in their encoder (DeBERTa its word embeddings), so attributes that are missing
    here are looked up there. The encoder is not registered as a child, or it would be counted, moved and changed twice.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.pooler = getattr(encoder, "pooler", None)
        self._plain_pooler = isinstance(self.pooler, nn.Linear)  # before faster layers replace it
        self.__dict__["_encoder"] = encoder

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_encoder"], name)

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> EncoderOutput:
        """The hidden states come as inputs_embeds [B, L, H]; the encoder's pooler, if it has one, runs on them."""
        pooled = None if self.pooler is None else self._pool(inputs_embeds)
        return EncoderOutput(last_hidden_state=inputs_embeds, pooler_output=pooled)

    def _pool(self, hidden: Tensor) -> Any:
        """Runs the pooler. ALBERT's and BigBird's are plain layers, which their encoders apply to the first row."""
        assert self.pooler is not None
        if not self._plain_pooler:
            return self.pooler(hidden)
        activation = getattr(self, "pooler_activation", None) or getattr(self, "activation", None)
        return None if activation is None else activation(self.pooler(hidden[:, 0]))


class TransformersHead(nn.Module):
    """A transformers class (ForMaskedLM, ForSequenceClassification, ForTokenClassification) over hidden states."""

    def __init__(self, model: Any) -> None:
        """Takes the model apart: replaces its encoder, which itself stays whole, by an `EncoderStandIn`."""
        super().__init__()
        setattr(model, model.base_model_prefix, EncoderStandIn(model.base_model))
        config = model.config.get_text_config()
        if config.pad_token_id is None:
            config.pad_token_id = 0  # decoders refuse batches without one, though nothing is padded here
        self.model = model

    def forward(self, rows: Tensor) -> Tensor:
        """Runs transformers' head: rows [B, L, H] -> logits [B, L, labels] or [B, labels], in the model's dtype."""
        ids = torch.zeros(rows.shape[:2], dtype=torch.long, device=rows.device)
        logits: Tensor = self.model(input_ids=ids, inputs_embeds=rows, return_dict=True).logits
        return logits
