"""Model for text: GPT, a transformer that predicts the next token (Radford et al., 2019). Layer normalisation comes
before each attention layer and each network of linear layers."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from grsgd.models.register import MAX_LAYERS, model

POSITIONS = ("learned", "rotary")
ROTARY_BASE = 10_000.0


class Attention(nn.Module):
    """Causal self-attention with several heads, for inputs [b, length, width]."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        batch, places, width = x.shape
        parts = self.inward(x).view(batch, places, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if rotary is not None:
            query, key = (rotated(each, rotary[:, :places]) for each in (query, key))
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.outward(seen.transpose(1, 2).reshape(batch, places, width))


class AttentionBlock(nn.Module):
    """Block of a transformer: attention, then a network of two linear layers for each token. The outputs of the
    attention layer and of the linear layers are added to their inputs (residual connections)."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.inward, self.outward = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), rotary))
        return x + self.dropout(self.outward(functional.gelu(self.inward(self.norm2(x)))))


class GPT(nn.Module):
    """Transformer that maps tokens, int64 [b, length], to logits [b, length, number of different tokens] of each
    token's next token."""

    def __init__(self, places: int, tokens: int, layers: int, heads: int, width: int, positions: str, dropout: float):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Embedding(places, width) if positions == "learned" else None
        rotary = angles(places, width // heads) if positions == "rotary" else None
        self.register_buffer("rotary", rotary, persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.apply(self._initialise)
        for block in self.blocks:  # smaller weights, because the sum of the blocks' outputs grows with their number
            for linear in (block.attention.outward, block.outward):
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * layers))

    @staticmethod
    def _initialise(module: nn.Module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(x)
        if self.places is not None:
            hidden = hidden + self.places.weight[: x.shape[1]]
        hidden = self.dropout(hidden)
        for block in self.blocks:
            hidden = block(hidden, self.rotary)
        return functional.linear(self.norm(hidden), self.tokens.weight)  # the output uses the embedding's weights, too


def angles(places: int, size: int) -> Tensor:
    """Return the cosines and sines of the angles of rotary position embeddings, [2, places, size / 2]. There is an
    angle for each position of a token in the text, and for each pair of the ``size`` numbers of an attention head."""
    speeds = ROTARY_BASE ** (-torch.arange(0, size, 2) / size)
    turned = torch.outer(torch.arange(places), speeds)
    return torch.stack([turned.cos(), turned.sin()])


def rotated(x: Tensor, rotary: Tensor) -> Tensor:
    """Return ``x``, the queries or keys [b, heads, length, size] of an attention layer, with rotary position embeddings
    (Su et al., 2021). Each pair of numbers in ``x`` is rotated by the angle of its token's position."""
    (cosine, sine), (one, other) = rotary, x.chunk(2, -1)
    return torch.cat([one * cosine - other * sine, one * sine + other * cosine], -1)


@model("gpt", reads_text=True, source="Radford et al. 2019; rotary positions: Su et al. 2021", usual=((128,), 256))
def gpt(
    shape, classes, layers: int = 4, heads: int = 4, width: int = 64, positions: str = "learned", dropout: float = 0.0
):
    """Transformer that predicts the next byte, with ``positions`` "learned" or "rotary".

    The model has 0.2 million parameters by default, 0.8 million with ``width`` 128, and 10.7 million with ``layers`` 6,
    ``heads`` 6 and ``width`` 384.
    """
    if positions not in POSITIONS:
        raise ValueError(f"model gpt: positions is {positions}, expected {' or '.join(POSITIONS)}")
    if min(layers, heads, width) < 1 or width % heads or (positions == "rotary" and width // heads % 2):
        parts = "an even number for each" if positions == "rotary" else "one part for each"
        raise ValueError(f"model gpt: width is {width} with {heads} heads, expected {parts} of the heads")
    if layers > MAX_LAYERS:
        raise ValueError(f"model gpt: layers is {layers}, expected at most {MAX_LAYERS}")
    if not 0 <= dropout < 1:
        raise ValueError(f"model gpt: dropout is {dropout:g}, expected 0 to less than 1")
    return GPT(*shape, classes, layers, heads, width, positions, dropout)
