"""One vector a token, for late interaction (ColBERT, arXiv:2004.12832). Tensors without I/O."""

from torch import Tensor, nn


class MultiVectorHead(nn.Module):
    """Projects all token rows of a step in one product."""

    def __init__(self, layers: nn.Sequential, width: int, *, skip_first: bool, mean: bool) -> None:
        """`skip_first`: the first token of a text gets no vector. `mean`: scores are means over query tokens."""
        super().__init__()
        self.layers, self.width = layers, width
        self.skip_first, self.mean = skip_first, mean

    def forward(self, hidden: Tensor) -> Tensor:
        """Token vectors: hidden [T, H] -> [T, width] of the same type, not normalised."""
        output: Tensor = self.layers(hidden)
        return output
