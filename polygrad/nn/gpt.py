"""GPT: a language model of causal transformer blocks.

Here: its configuration, the model, the loop that generates tokens.
Not here: blocks (`transformer.py`), drawing a token and the step of the loop (`generation.py`), tokenisers, training
and commands (`polygrad.gpt`).
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.array.recording import no_grad
from polygrad.errors import ShapeError
from polygrad.nn import init
from polygrad.nn.functional import dropout
from polygrad.nn.generation import Following, check_sampling, sample
from polygrad.nn.kv_cache import KVCache, KVPlace
from polygrad.nn.layers import Embedding, Linear
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter
from polygrad.nn.positions import PositionalEmbedding, RotaryEmbedding, SinusoidalEmbedding
from polygrad.nn.transformer import TransformerBlock, norm_of

_POSITIONS = ("rotary", "learned", "sinusoidal", "none")


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT.

    Parameters
    ----------
    vocab_size : int
        How many tokens there are.
    context : int
        The most positions it sees at once.
    dim, layers, heads : int
        Features, blocks, and heads of attention.
    kv_heads : int, optional
        Heads of keys and values; *heads* unless given.
    hidden : int, optional
        Features inside of the feed-forward parts. Unless given 4 * dim, or for "swiglu" 8/3 * dim rounded up to a
        multiple of 32, which has as many weights.
    norm, activation : str
        As for `TransformerBlock`.
    positions : str
        "rotary", "learned", "sinusoidal" or "none".
    rotary_base : float
        As for `RotaryEmbedding`.
    tied : bool
        Whether the output layer shares the weights of the token embedding.
    bias : bool
        Whether linear layers have biases.
    dropout : float
        In training.
    """

    vocab_size: int
    context: int = 256
    dim: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    norm: str = "rms"
    activation: str = "swiglu"
    positions: str = "rotary"
    rotary_base: float = 10000.0
    tied: bool = True
    bias: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.vocab_size, self.context, self.dim, self.layers, self.heads) < 1:
            raise ShapeError("cannot make a GPT: vocab_size, context, dim, layers and heads must be at least 1")
        if self.positions not in _POSITIONS:
            raise ShapeError(
                f"there are no positions {self.positions!r}: it is one of {', '.join(map(repr, _POSITIONS))}"
            )

    @property
    def inside(self) -> int:
        """Features inside of the feed-forward parts."""
        if self.hidden is not None:
            return self.hidden
        return -(-self.dim * 8 // 96) * 32 if self.activation == "swiglu" else 4 * self.dim


class GPT(Module):
    """A causal language model: tokens in, scores of the next token out.

    Weights start normal with std 0.02, those that lead back into the residual stream divided by sqrt(2 * layers).
    Source: Radford et al., Language models are unsupervised multitask learners (2019).

    Parameters
    ----------
    config : GPTConfig
        Its shape; or give the fields of one by name.
    dtype, device : optional
        Of the parameters; float32 and the default device.
    **fields
        Fields of a `GPTConfig`, in place of *config*.

    Examples
    --------
    >>> import polygrad as pg
    >>> model = pg.nn.GPT(vocab_size=50, context=8, dim=16, layers=2, heads=2)
    >>> tokens = pg.asarray([[1, 2, 3]])
    >>> model(tokens).shape
    (1, 3, 50)
    >>> model.generate(tokens, 4, temperature=0.0).shape
    (1, 7)
    """

    def __init__(
        self, config: GPTConfig | None = None, *, dtype: Any = None, device: Any = None, **fields: Any
    ) -> None:
        c = config if config is not None else GPTConfig(**fields)
        if config is not None and fields:
            raise TypeError("GPT takes a config, or the fields of one, not both")
        where = {"dtype": dtype, "device": device}
        self.config = c
        self.token_embedding = Embedding(c.vocab_size, c.dim, **where)
        self.position_embedding: Module | None = None
        if c.positions == "learned":
            self.position_embedding = PositionalEmbedding(c.context, c.dim, **where)
        elif c.positions == "sinusoidal":
            self.position_embedding = SinusoidalEmbedding(c.context, c.dim, device=device)
        rotary = None
        if c.positions == "rotary":
            rotary = RotaryEmbedding(c.dim // c.heads, c.context, c.rotary_base, device=device)
        self.blocks = [
            TransformerBlock(
                c.dim,
                c.heads,
                c.inside,
                kv_heads=c.kv_heads,
                norm=c.norm,
                activation=c.activation,
                bias=c.bias,
                dropout=c.dropout,
                rotary=rotary,
                **where,
            )
            for _ in range(c.layers)
        ]
        self.norm = norm_of(c.norm, c.dim, where)
        self.head = Linear(c.dim, c.vocab_size, bias=False, **where)
        if c.tied:
            self.head.weight = self.token_embedding.weight
        self._start()

    def _start(self) -> None:
        """Give the weights their first values."""
        residual = 1.0 / math.sqrt(2.0 * self.config.layers)
        with no_grad():
            for name, p in self.named_parameters():
                if name.endswith("bias"):
                    p.assign_(init.zeros(p.shape, dtype=p.dtype, device=p.device))
                elif p.ndim > 1:
                    back = name.endswith(("attention.out.weight", "mlp.down.weight"))
                    std = 0.02 * (residual if back else 1.0)
                    p.assign_(init.normal(p.shape, 0.0, std, dtype=p.dtype, device=p.device))

    def forward(self, tokens: Array, caches: Sequence[KVCache | KVPlace] | None = None) -> Array:
        """Return scores [N, T, vocab_size] for tokens [N, T]; with *caches* the tokens follow those in them."""
        if tokens.ndim != 2:  # noqa: PLR2004  [N, T]
            raise ShapeError(f"cannot read tokens of shape {list(tokens.shape)}: they are [N, T]")
        start = caches[0].start if caches else 0
        if start + tokens.shape[1] > self.config.context:
            raise ShapeError(
                f"cannot read {start + tokens.shape[1]} positions: this GPT has a context of {self.config.context}"
            )
        x = self.token_embedding(tokens)
        if self.position_embedding is not None:
            x = self.position_embedding(x, start)
        x = dropout(x, self.config.dropout, self.training)
        for k, block in enumerate(self.blocks):
            x = block(x, None, caches[k] if caches else None)
            if caches:  # all blocks have one plan, and it is that of the next token
                x = x.realize()
        return self.head(self.norm(x))  # type: ignore[no-any-return]

    def loss(self, tokens: Array, targets: Array, ignore_index: int | None = None) -> Array:
        """Return the mean cross-entropy of the next tokens *targets*, [N, T]."""
        scores = FUNCTIONS["reshape"](self(tokens), (-1, self.config.vocab_size))
        labels = FUNCTIONS["reshape"](targets, (-1,))
        return FUNCTIONS["cross_entropy"](scores, labels, ignore_index=ignore_index)  # type: ignore[no-any-return]

    def new_caches(self, batch: int) -> list[KVCache]:
        """Return an empty cache for each layer, for *batch* sequences."""
        c = self.config
        weight: Parameter = self.token_embedding.weight
        return [
            KVCache(batch, c.kv_heads or c.heads, c.context, c.dim // c.heads, dtype=weight.dtype, device=weight.device)
            for _ in range(c.layers)
        ]

    def stream(
        self,
        tokens: Array,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        use_cache: bool = True,
    ) -> Iterator[Array]:
        """Yield one new token for each sequence, [N, 1], as often as asked for; see `generate`."""
        check_sampling(temperature, top_k, top_p)
        if tokens.ndim != 2 or tokens.shape[1] == 0:  # noqa: PLR2004  [N, T]
            raise ShapeError(
                f"cannot go on from tokens of shape {list(tokens.shape)}: they are [N, T], with T at least 1"
            )
        context, length, mode = self.config.context, tokens.shape[1], self.training
        window, new = tokens[:, -context:], tokens
        waiting: list[Array] = []
        caches = self.new_caches(tokens.shape[0]) if use_cache and length <= context else None
        settings = temperature, top_k, top_p
        following = None if caches is None else Following(self, caches, settings)
        for _ in range(max_new_tokens):
            with no_grad():
                self.eval()
                try:
                    if following is not None and length <= context:
                        new = following(new, length)
                    else:  # the window moves: every position is another one
                        window = FUNCTIONS["concat"]([window, *waiting], axis=1)[:, -context:].realize()
                        waiting, following = [], None
                        new = sample(self(window)[:, -1], *settings).realize()
                finally:
                    self.train(mode)
                waiting.append(new.astype(window.dtype, copy=False))
                length += 1
            yield new

    def generate(
        self,
        tokens: Array,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        use_cache: bool = True,
    ) -> Array:
        """Return *tokens* [N, T] with new ones behind them.

        Parameters
        ----------
        tokens : Array
            At least one token for each sequence.
        max_new_tokens : int
            How many to add.
        temperature : float
            What scores are divided by; at 0 the most likely token is taken.
        top_k : int, optional
            Draw from the k most likely tokens alone.
        top_p : float, optional
            Draw from the most likely tokens alone whose probabilities together reach this.
        use_cache : bool
            Whether keys and values of earlier positions are kept; the tokens are the same without.
        """
        parts = [tokens, *self.stream(tokens, max_new_tokens, temperature, top_k, top_p, use_cache)]
        return FUNCTIONS["concat"]([p.astype(tokens.dtype) for p in parts], axis=1)  # type: ignore[no-any-return]
