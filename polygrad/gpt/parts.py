"""What a training run is made of: model, optimiser, schedule, loader, scale of the loss, and the held-out measure.

Here: making them of settings.
Not here: the settings (`settings.py`), the loop (`polygrad.training`).
"""

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from polygrad.array import random
from polygrad.array.autocasting import autocast
from polygrad.array.config import device
from polygrad.array.object import Array
from polygrad.array.recording import no_grad
from polygrad.data import DataLoader, TokenFile
from polygrad.errors import TrainingError
from polygrad.gpt.corpus import Corpus
from polygrad.gpt.settings import model_config
from polygrad.nn.gpt import GPT
from polygrad.optim import AdamW, GradScaler
from polygrad.optim.lr_scheduler import CosineWithWarmup


@dataclasses.dataclass
class Parts:
    """What is trained and what trains it; checkpoints hold the state of each."""

    model: GPT
    optimiser: AdamW
    schedule: CosineWithWarmup
    loader: DataLoader
    scaler: GradScaler | None

    @property
    def tokens_per_step(self) -> int:
        """How many tokens all processes together take a step; without what is accumulated."""
        return self.loader.batch_size * self.loader.world * self.model.config.context


def make_parts(settings: Mapping[str, Any], corpus: Corpus, rank: int = 0, world: int = 1) -> Parts:
    """Return what a run needs, in its first state, which the seed decides.

    Parameters
    ----------
    settings : mapping
        What `settle` returned.
    corpus : Corpus
        The data.
    rank, world : int
        Which of how many processes this is; a batch is one process's.

    Raises
    ------
    TrainingError
        If the settings do not fit each other.
    DataError
        If there is not one window of data.
    """
    if settings["min_lr"] > settings["lr"]:
        raise TrainingError(
            f"cannot end at a learning rate of {settings['min_lr']:g} (--min-lr), which is more than the highest, "
            f"{settings['lr']:g} (--lr)"
        )
    if settings["warmup"] >= settings["steps"]:
        raise TrainingError(
            f"cannot warm up for {settings['warmup']} steps (--warmup) of {settings['steps']} (--steps): take fewer"
        )
    heads, shared = settings["heads"], settings["kv_heads"] or settings["heads"]
    if settings["dim"] % (2 * heads):
        raise TrainingError(
            f"cannot give {settings['dim']} features (--dim) to {heads} heads (--heads): take a multiple of "
            f"{2 * heads}, since positions turn pairs of them"
        )
    if heads % shared:
        raise TrainingError(
            f"cannot share {shared} heads of keys and values (--kv-heads) among {heads} (--heads): they must divide "
            "these"
        )
    random.seed(settings["seed"])
    context, batch = settings["context"], settings["batch"]
    windows = corpus.train.random_windows(
        context, max(batch * world, (corpus.train.count - 1) // context), seed=settings["seed"]
    )
    config = model_config(settings, corpus.vocab_size)
    model = GPT(config)
    optimiser = AdamW(
        model,
        lr=settings["lr"],
        betas=(settings["beta1"], settings["beta2"]),
        weight_decay=settings["weight_decay"],
    )
    schedule = CosineWithWarmup(optimiser, settings["steps"], settings["warmup"], settings["min_lr"])
    loader = DataLoader(windows, batch, drop_last=True, seed=settings["seed"], rank=rank, world=world)
    scaler = GradScaler() if settings["precision"] == "float16" else None
    return Parts(model, optimiser, schedule, loader, scaler)


def loss_of(model: GPT, batch: Any) -> Array:
    """Return the loss of a batch: tokens, and those that follow."""
    return model.loss(*batch)


class HeldOut:
    """The loss of held-out text: windows spread evenly over it, the same ones each time.

    Parameters
    ----------
    model : GPT
        What is measured.
    file : TokenFile
        The held-out tokens.
    batch, batches : int
        Windows in a batch, and at most how many of these.
    bytes_per_token : float
        Of the held-out text.
    precision : str
        What products are computed in.
    """

    def __init__(
        self, model: GPT, file: TokenFile, batch: int, batches: int, bytes_per_token: float, precision: str
    ) -> None:
        context = model.config.context
        there = len(file.windows(context))
        batch = min(batch, there)
        count = min(batches, there // batch) * batch
        stride = max(context, (file.count - 1 - context) // max(1, count - 1))
        self._windows = file.windows(context, stride)
        self._chosen = [range(k, k + batch) for k in range(0, count, batch)]
        self.model, self.bytes_per_token, self.precision = model, bytes_per_token, precision
        self.tokens = count * context

    def __call__(self) -> float:
        """Return the mean loss of a token, in nats. The model's mode and all random numbers stay as they are."""
        mode, total = self.model.training, 0.0
        self.model.eval()
        try:
            with no_grad(), device(self.model.token_embedding.weight.device), self._cast():
                for indices in self._chosen:
                    total += float(loss_of(self.model, self._windows.batch(indices)))
        finally:
            self.model.train(mode)
        return total / len(self._chosen)

    def _cast(self) -> Any:
        narrow = self.precision != "float32"
        return autocast(self.precision) if narrow else contextlib.nullcontext()

    def bits_per_byte(self, loss: float) -> float:
        """Return a mean loss of a token in nats as bits for each byte of text, which no vocabulary can change."""
        return loss / math.log(2.0) / self.bytes_per_token
