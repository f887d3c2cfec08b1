"""fit: a training loop made of the pieces that are here and in `pg.optim`, `pg.data` and `pg.io`.

Here: what a user can ask of it, and putting the pieces together.
Not here: the pieces; what happens in a step, and in which order (`run.py`).
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from polygrad.array.object import Array
from polygrad.errors import TrainingError
from polygrad.optim import GradScaler
from polygrad.training.batches import Batches
from polygrad.training.csv_log import CSVLog
from polygrad.training.early_stopping import EarlyStopping
from polygrad.training.interruption import Interruption
from polygrad.training.progress import Progress
from polygrad.training.run import Reducer, Run
from polygrad.training.saving import Saver
from polygrad.training.tensorboard import TensorBoardLog

_PRECISIONS = (None, "float32", "bfloat16", "float16")


class Fitted(NamedTuple):
    """What `fit` returns.

    Attributes
    ----------
    start, step : int
        How many steps were done before, and how many are done now.
    losses : list of float
        The losses of the steps of this call: the first is that of step ``start + 1``.
    evaluations : list of (int, dict)
        The figures of the held-out data, with the steps after which they were taken.
    stopped : str
        Why the run ended: ``"steps"``, ``"epochs"``, ``"interrupted"`` or ``"early stopping"``.
    checkpoint : Path or None
        The newest checkpoint.
    """

    start: int
    step: int
    losses: list[float]
    evaluations: list[tuple[int, dict[str, Any]]]
    stopped: str
    checkpoint: Path | None


def fit(  # noqa: PLR0913  each is a choice of its own, and has a default
    model: Any,
    loss: Callable[[Any, Any], Array],
    loader: Iterable[Any],
    optimiser: Any,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    schedule: Any = None,
    scaler: GradScaler | None = None,
    max_norm: float | None = None,
    accumulate: int = 1,
    precision: str | None = None,
    average: Any = None,
    log: Any = (),
    log_every: int = 1,
    progress: bool | Progress = True,
    description: str = "train",
    items_per_step: float | None = None,
    unit: str = "it",
    checkpoints: Any = None,
    save_every: int | None = None,
    resume: bool = False,
    metadata: Mapping[str, Any] | None = None,
    parts: Mapping[str, Any] | None = None,
    unsaved: str = "warn",
    evaluate: Callable[[Any], Any] | None = None,
    evaluate_every: int | None = None,
    early_stopping: EarlyStopping | None = None,
    monitor: str | None = None,
    after_step: Callable[[int], object] | None = None,
    reducer: Reducer | None = None,
    read_every: int = 1,
    compiled: bool = False,
) -> Fitted:
    """Train a model: batches, losses, steps, and what belongs to them.

    Ctrl-C or SIGTERM ends the run after the step that is under way, with a checkpoint; Ctrl-C again ends it at once. A
    loss that is not finite ends it with an error, and no checkpoint is written any more.

    Parameters
    ----------
    model : Module
        Its mode is left as it is, except while it is evaluated.
    loss : callable
        ``loss(model, batch)`` returns an array of one element.
    loader : iterable
        Gives batches, in one pass after another. One with a `state_dict`, such as `pg.data.DataLoader`, goes on in the
        middle of a pass; of others the batches before are passed over.
    optimiser : Optimizer
        Over the model's parameters.
    steps, epochs : int
        How long to train in all, with what a resumed run had done before: one of the two. Batches at the end of the
        epochs that are too few for a step of *accumulate* are left out.
    schedule : Scheduler, optional
        Moves on after each step; `ReduceLROnPlateau` with each evaluation, or without one with each loss.
    scaler : GradScaler, optional
        Of losses; with ``precision="float16"`` there is one unless given.
    max_norm : float, optional
        To which gradients are clipped. With it, and without a scaler, a step whose gradients are not finite is an error
        and leaves the parameters as they were.
    accumulate : int
        How many batches make one step.
    precision : {None, "float32", "bfloat16", "float16"}
        What `pg.autocast` computes products in.
    average : EMA, optional
        Follows the parameters after each step.
    log : path, log, or sequence of these
        Where figures go: a path that ends in ``.csv`` is a `CSVLog`, another one the folder of a `TensorBoardLog`,
        which are resumed with the run and closed after it; or what has ``write(step, **figures)``.
    log_every : int
        Steps between two rows; evaluations have a row always.
    progress : bool or Progress
        Whether to show a bar, or which.
    description : str
        What the bar says in front.
    items_per_step : float, optional
        Tokens, say, of a whole step of this process: their rate is shown and logged, as ``unit/s``.
    unit : str
        What they are called.
    checkpoints : path or Checkpoints, optional
        Where everything is saved: at the end, when the run is interrupted, and every *save_every* steps.
    save_every : int, optional
        In steps.
    resume : bool
        Go on from the newest checkpoint, if there is one. Without it, a folder that has some is refused.
    metadata : mapping, optional
        Saved with each checkpoint; anything that JSON can hold.
    parts : mapping, optional
        What else is saved and loaded: objects with `state_dict` and `load_state_dict`, by names of their own.
    unsaved : {"warn", "raise"}
        What to do if a checkpoint cannot be written before the end of the run, because the disk is full, say.
    evaluate : callable, optional
        ``evaluate(model)`` returns a number, which is called ``valid_loss``, or several by names. It is called without
        gradients, in evaluation mode, and what it draws from `pg.random` or `random` is not drawn from the training's.
    evaluate_every : int, optional
        In steps; at the end of the run it is called in any case.
    early_stopping : EarlyStopping, optional
        Ends the run, by the first figure of *evaluate*, or by the loss if there is none.
    monitor : str, optional
        The name of another figure that *early_stopping* and `ReduceLROnPlateau` follow.
    after_step : callable, optional
        Called with the number of steps done, after each.
    reducer : Reducer, optional
        Makes gradients of several processes one, before each step.
    read_every : int
        Steps between two readings of the losses. Reading waits for the device: with more, a GPU can be kept busier;
        figures and errors then come as many steps later, but none is left out.
    compiled : bool
        Replay the steps, see `pg.compile`: without Python's share of forward, backward and optimiser. *loss* must be
        fit for it, and *accumulate* 1; neither a *scaler* nor a *reducer* may be given. A step whose gradients are not
        finite is then known by the next loss, after it has moved the parameters; the checkpoint stays whole.

    Returns
    -------
    Fitted
        Losses, evaluations, and why the run ended.

    Raises
    ------
    TrainingError
        If a loss is not finite, there are no batches, a number makes no sense, or the last checkpoint cannot be
        written.
    StateError
        If the checkpoint does not fit; nothing was changed.

    Examples
    --------
    >>> import polygrad as pg
    >>> x = pg.random.normal((64, 3), dtype=pg.float32)
    >>> data = pg.data.TensorDataset(x, x @ pg.asarray([[1.0], [2.0], [3.0]], dtype=pg.float32))
    >>> model = pg.nn.Linear(3, 1)
    >>> done = pg.training.fit(
    ...     model,
    ...     lambda model, batch: pg.nn.mse_loss(model(batch[0]), batch[1]),
    ...     pg.data.DataLoader(data, batch_size=16, shuffle=True, seed=0),
    ...     pg.optim.Adam(model, lr=0.1),
    ...     epochs=20,
    ...     progress=False,
    ... )
    >>> done.step, done.stopped, done.losses[-1] < 0.01 * done.losses[0]
    (80, 'epochs', True)
    """
    _check(steps, epochs, precision, accumulate=accumulate, log_every=log_every, read_every=read_every,
           save_every=save_every, evaluate_every=evaluate_every)  # fmt: skip
    if scaler is None and precision == "float16":
        scaler = GradScaler()
    if compiled and (accumulate > 1 or scaler is not None or reducer is not None):
        what = "accumulate" if accumulate > 1 else "a scaler" if scaler is not None else "a reducer"
        raise TrainingError(f"cannot train compiled with {what}, which decides by values: leave one of the two out")
    rank = int(getattr(reducer, "rank", 0))
    batches = Batches(loader, epochs)
    state = {
        "model": model, "optimiser": optimiser, "loader": batches, "schedule": schedule, "scaler": scaler,
        "average": average, "early_stopping": early_stopping,
    }  # fmt: skip
    taken = [name for name in parts or {} if name in state]
    if taken:
        raise TrainingError(f"cannot save a part called {taken[0]!r}: the run has one of this name")
    saver = Saver(checkpoints, {**state, **(parts or {})}, metadata, unsaved, rank)
    start = saver.begin(resume)
    begin = getattr(reducer, "begin", None)
    if begin is not None:
        begin(start)
    length = batches.length if epochs is not None else None
    total = steps if epochs is None or length is None else epochs * length // accumulate
    run = Run(
        model, loss, batches, optimiser, total=total, start=start, schedule=schedule, scaler=scaler, max_norm=max_norm,
        accumulate=accumulate, precision=precision, average=average, saver=saver, save_every=save_every,
        evaluate=evaluate, evaluate_every=evaluate_every, stopping=early_stopping, monitor=monitor,
        after_step=after_step, reducer=reducer, log_every=log_every, read_every=read_every, items=items_per_step,
        unit=unit, compiled=compiled,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        stack.callback(batches.close)
        if not rank:
            resumed = start if saver.saved_at is not None else None
            run.logs = [_opened(one, resumed, stack) for one in _listed(log)]
            run.progress = _begun(progress, Progress(total, start, description, items_per_step, unit), stack)
        if threading.current_thread() is threading.main_thread():
            saving = "" if checkpoints is None else ", and saving"
            message = f"stopping after this step{saving}; Ctrl-C again stops at once"
            run.interruption = stack.enter_context(Interruption(message="" if rank else message))
        run.go()
    ended = run.stopped or ("steps" if epochs is None else "epochs")
    return Fitted(start, run.step, run.losses, run.evaluations, ended, saver.last)


def _check(steps: int | None, epochs: int | None, precision: str | None, **counts: int | None) -> None:
    if (steps is None) == (epochs is None):
        raise TrainingError("cannot train without knowing how long: give steps= or epochs=, one of the two")
    for name, count in {"steps": steps, "epochs": epochs, **counts}.items():
        if count is not None and count < 1:
            raise TrainingError(f"cannot train with {name}={count}: it must be at least 1")
    if precision not in _PRECISIONS:
        raise TrainingError(f"cannot train in precision {precision!r}: it is 'float32', 'bfloat16' or 'float16'")


def _listed(log: Any) -> list[Any]:
    return list(log) if isinstance(log, (list, tuple)) else [log]


def _opened(log: Any, resume_at: int | None, stack: contextlib.ExitStack) -> Any:
    """Return a log, made if it is a path."""
    if hasattr(log, "write"):
        return log
    kind: type[CSVLog] | type[TensorBoardLog] = CSVLog if Path(log).suffix.lower() == ".csv" else TensorBoardLog
    return stack.enter_context(kind(log, resume_at))


def _begun(wanted: bool | Progress, own: Progress, stack: contextlib.ExitStack) -> Progress | None:
    """Return the progress to show: none, the given one, which may have begun, or one's own."""
    if wanted is False:
        return None
    progress = own if wanted is True else wanted
    return progress if progress.active else stack.enter_context(progress)
