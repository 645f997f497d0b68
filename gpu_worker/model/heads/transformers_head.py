"""An unmodified transformers head without its encoder: it takes hidden states that were computed packed."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling


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
        """rows [B, L, H] -> logits [B, L, labels] or [B, labels], in the model's dtype."""
        ids = torch.zeros(rows.shape[:2], dtype=torch.long, device=rows.device)
        logits: Tensor = self.model(input_ids=ids, inputs_embeds=rows, return_dict=True).logits
        return logits
