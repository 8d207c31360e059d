"""The model for --data tokens:PATH: a small causal language model.

Supports cell 3 (model).

    B  batch    T  tokens    C  vocabulary
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

# %% active="py"
from trainer_core.config import TrainConfig


# %%
class TinyDecoder(nn.Module):
    """A causal language model: (B, T) token ids to (B, T, C) logits of the next token."""

    def __init__(self, cfg: TrainConfig, vocab_size: int) -> None:
        super().__init__()
        width = cfg.hidden_dim
        self.tokens = nn.Embedding(vocab_size, width)
        self.places = nn.Embedding(cfg.seq_len, width)
        block = nn.TransformerEncoderLayer(
            d_model=width,
            nhead=cfg.num_heads,
            dim_feedforward=4 * width,
            dropout=cfg.dropout,
            activation=F.gelu,
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(block, cfg.num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size)
        mask = nn.Transformer.generate_square_subsequent_mask(cfg.seq_len)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.tokens(inputs) + self.places.weight
        logits: Tensor = self.head(self.blocks(hidden, self.mask, is_causal=True))
        return logits  # (B, T, C)
