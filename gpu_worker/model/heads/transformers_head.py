"""An unmodified transformers head without its encoder: hidden states that were computed packed go straight in."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling


class EncoderOutput(BaseModelOutputWithPooling):
    """What an encoder answers with; nothing of what a family adds to it (XLNet's memories, Luke's entities)."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class EncoderStandIn(nn.Module):
    """Stands in a head's class where its encoder was, and answers with the rows that it is given.

    Heads of some families look things up in their encoder (DeBERTa its word embeddings): what is missing here is found
    there. The encoder is not registered as a child, so it is not counted, moved or changed twice.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.pooler = getattr(encoder, "pooler", None)
        self._plain_pooler = isinstance(self.pooler, nn.Linear)  # before it is made fast
        self.__dict__["_encoder"] = encoder

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_encoder"], name)

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> EncoderOutput:
        """inputs_embeds [B, L, H] are the hidden states; a pooler of the encoder runs on them."""
        pooled = None if self.pooler is None else self._pool(inputs_embeds)
        return EncoderOutput(last_hidden_state=inputs_embeds, pooler_output=pooled)

    def _pool(self, hidden: Tensor) -> Any:
        """ALBERT's pooler and BigBird's are plain layers, which their encoders apply to the first row."""
        assert self.pooler is not None
        if not self._plain_pooler:
            return self.pooler(hidden)
        activation = getattr(self, "pooler_activation", None) or getattr(self, "activation", None)
        return None if activation is None else activation(self.pooler(hidden[:, 0]))


class TransformersHead(nn.Module):
    """A transformers class (ForMaskedLM, ForSequenceClassification, ForTokenClassification) on given hidden states."""

    def __init__(self, model: Any) -> None:
        """Takes the model apart: its encoder stays whole, and `EncoderStandIn` takes its place."""
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
