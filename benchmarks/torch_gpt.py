"""A GPT in PyTorch with the shape and the names of `pg.nn.GPT`, for comparisons.

Here: `torch_gpt`, for learned positions, RMSNorm, SwiGLU and no biases.
Not here: trainings (`parity.py`), memory (`step_memory.py`).
"""

from typing import Any

from polygrad.nn import GPTConfig


def torch_gpt(config: GPTConfig, flash: bool = True) -> Any:
    """Return the model; its attention is PyTorch's fused one, or with *flash* false written from primitives."""
    import torch
    from torch import nn
    from torch.nn import functional

    dim, heads, hidden = config.dim, config.heads, config.inside

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

        def forward(self, x: Any) -> Any:
            n, t, _ = x.shape
            q, k, v = self.qkv(x).view(n, t, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
            if flash:
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                later = torch.triu(torch.full((t, t), float("-inf"), device=x.device, dtype=x.dtype), 1)
                y = torch.softmax(q @ k.transpose(-2, -1) * (dim // heads) ** -0.5 + later, -1) @ v
            return self.out(y.transpose(1, 2).reshape(n, t, dim))

    class SwiGLU(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
            self.down = nn.Linear(hidden, dim, bias=False)

        def forward(self, x: Any) -> Any:
            return self.down(functional.silu(self.gate(x)) * self.up(x))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.attention = nn.RMSNorm(dim, eps=1e-6), Attention()
            self.mlp_norm, self.mlp = nn.RMSNorm(dim, eps=1e-6), SwiGLU()

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.attention_norm(x))
            return x + self.mlp(self.mlp_norm(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token_embedding = nn.Embedding(config.vocab_size, dim)
            self.position_embedding = nn.Embedding(config.context, dim)
            self.blocks = nn.ModuleList(Block() for _ in range(config.layers))
            self.norm, self.head = nn.RMSNorm(dim, eps=1e-6), nn.Linear(dim, config.vocab_size, bias=False)

        def forward(self, x: Any) -> Any:
            x = self.token_embedding(x) + self.position_embedding.weight[: x.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Model()
