"""Recurrent layers: RNN, LSTM and GRU with PyTorch's gates and names, and their cells.

Here: the steps, and layers that run them over sequences.
Not here: matrix products and activations (`polygrad.ops`).
"""

import math
from collections.abc import Callable
from typing import Any

from polygrad.array.functions import FUNCTIONS
from polygrad.array.object import Array
from polygrad.errors import ShapeError
from polygrad.nn import init
from polygrad.nn.functional import dropout
from polygrad.nn.module import Module
from polygrad.nn.parameter import Parameter

_BATCHED = 3  # axes of [length, N, features]
State = tuple[Array, ...]
# From the inputs' part of the gates, the state, and the state's weights and bias: the new state, h first.
Step = Callable[[Array, State, Array, Array | None, int], State]


def _gate(x: Array, k: int, size: int) -> Array:
    return x[:, k * size : (k + 1) * size]


def _linear(x: Array, weight: Array, bias: Array | None) -> Array:
    return FUNCTIONS["linear"](x, weight, bias)  # type: ignore[no-any-return]


def _rnn_step(activation: str) -> Step:
    def step(given: Array, state: State, weight: Array, bias: Array | None, _size: int) -> State:
        return (FUNCTIONS[activation](given + _linear(state[0], weight, bias)),)

    return step


def _lstm_step(given: Array, state: State, weight: Array, bias: Array | None, size: int) -> State:
    """Gates are input, forget, cell, output."""
    gates = given + _linear(state[0], weight, bias)
    enter, keep, leave = (FUNCTIONS["sigmoid"](_gate(gates, k, size)) for k in (0, 1, 3))
    cell = keep * state[1] + enter * FUNCTIONS["tanh"](_gate(gates, 2, size))
    return leave * FUNCTIONS["tanh"](cell), cell


def _gru_step(given: Array, state: State, weight: Array, bias: Array | None, size: int) -> State:
    """Gates are reset, update, new; the reset gate multiplies the state's part of the new one, bias included."""
    own = _linear(state[0], weight, bias)
    reset, update = (FUNCTIONS["sigmoid"](_gate(given, k, size) + _gate(own, k, size)) for k in (0, 1))
    new = FUNCTIONS["tanh"](_gate(given, 2, size) + reset * _gate(own, 2, size))
    return ((1.0 - update) * new + update * state[0],)


class _Recurrent(Module):
    """Layers of one kind of cell, run over sequences in one direction or both; subclasses name the cell."""

    gates = 1
    states = 1  # 2 for LSTM: h and c

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        if num_layers < 1 or hidden_size < 1 or not 0.0 <= dropout <= 1.0:
            raise ShapeError(
                f"cannot make {type(self).__name__} of {num_layers} layers of {hidden_size} features with dropout "
                f"{dropout}: the first two are at least 1, the last is in [0, 1]"
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, dropout, bidirectional
        where = {"dtype": dtype, "device": device}
        limit = 1.0 / math.sqrt(hidden_size)
        rows = self.gates * hidden_size
        for name in self._names():
            inputs = input_size if "_l0" in name else hidden_size * self.directions
            width = inputs if "_ih" in name else hidden_size
            vector = name.startswith("bias")
            start = init.uniform((rows,) if vector else (rows, width), -limit, limit, **where)
            setattr(self, name, Parameter(start, no_decay=vector))

    @property
    def directions(self) -> int:
        """1, or 2 if it runs both ways."""
        return 2 if self.bidirectional else 1

    def _names(self) -> list[str]:
        kinds = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else [])]
        ends = ["", "_reverse"][: self.directions]
        return [f"{kind}_l{k}{end}" for k in range(self.num_layers) for end in ends for kind in kinds]

    def _step(self) -> Step:
        raise NotImplementedError

    def forward(self, x: Array, hx: Any = None) -> tuple[Array, Any]:
        """Return the outputs of the last layer at every position, and the last state of every layer.

        Parameters
        ----------
        x : Array
            [length, N, input_size], [N, length, input_size] with *batch_first*, or [length, input_size].
        hx : Array, or pair of arrays for LSTM, optional
            The first states, [num_layers * directions, N, hidden_size], or without N; zeros unless given.
        """
        single = x.ndim == _BATCHED - 1
        if x.ndim not in (_BATCHED - 1, _BATCHED) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"cannot apply {type(self).__name__}({self.input_size}, {self.hidden_size}) to shape {list(x.shape)}: "
                f"it takes [length, N, {self.input_size}], or [N, length, {self.input_size}] with batch_first"
            )
        flipped = self.batch_first and not single
        line = FUNCTIONS["expand_dims"](x, 1) if single else FUNCTIONS["swapaxes"](x, 0, 1) if flipped else x
        if line.shape[0] == 0:
            raise ShapeError(f"cannot apply {type(self).__name__} to shape {list(x.shape)}: the sequence is empty")
        first = self._first(line, hx, single)
        line, last = self._layers(line, first)
        out = FUNCTIONS["squeeze"](line, 1) if single else FUNCTIONS["swapaxes"](line, 0, 1) if flipped else line
        final = tuple(FUNCTIONS["stack"]([s[j] for s in last], axis=0) for j in range(self.states))
        if single:
            final = tuple(FUNCTIONS["squeeze"](s, 1) for s in final)
        return out, final if self.states > 1 else final[0]

    def _first(self, line: Array, hx: Any, single: bool) -> list[State]:
        """Return the first state of each layer and direction."""
        count, n = self.num_layers * self.directions, line.shape[1]
        shape = (count, n, self.hidden_size)
        if hx is None:
            zero = FUNCTIONS["zeros"](shape[1:], dtype=line.dtype, device=line.device)
            return [(zero,) * self.states] * count
        given = (hx,) if isinstance(hx, Array) else tuple(hx)
        given = tuple(FUNCTIONS["expand_dims"](h, 1) for h in given) if single else given
        if len(given) != self.states or any(h.shape != shape for h in given):
            raise ShapeError(
                f"cannot start {type(self).__name__} from states of shapes {[list(h.shape) for h in given]}: there "
                f"must be {self.states} of shape {list(shape)}"
            )
        return [tuple(h[k] for h in given) for k in range(count)]

    def _layers(self, line: Array, first: list[State]) -> tuple[Array, list[State]]:
        last: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                line = dropout(line, self.dropout, self.training)
            outs = []
            for d in range(self.directions):
                out, state = self._run(line, first[layer * self.directions + d], layer, backwards=d == 1)
                outs.append(out)
                last.append(state)
            line = outs[0] if len(outs) == 1 else FUNCTIONS["concat"](outs, axis=-1)
        return line, last

    def _run(self, line: Array, state: State, layer: int, backwards: bool) -> tuple[Array, State]:
        end = f"_l{layer}{'_reverse' if backwards else ''}"
        bias = getattr(self, f"bias_ih{end}") if self.bias else None
        own = getattr(self, f"bias_hh{end}") if self.bias else None
        weight = getattr(self, f"weight_hh{end}")
        given = _linear(line, getattr(self, f"weight_ih{end}"), bias)  # for all positions at once
        step, outs = self._step(), []
        order = range(line.shape[0])
        for t in reversed(order) if backwards else order:
            state = step(given[t], state, weight, own, self.hidden_size)
            outs.append(state[0])
        return FUNCTIONS["stack"](outs[::-1] if backwards else outs, axis=0), state

    def extra_repr(self) -> str:
        """Return what was asked for."""
        return (
            f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, batch_first={self.batch_first}, "
            f"dropout={self.dropout}, bidirectional={self.bidirectional}"
        )


class RNN(_Recurrent):
    """h = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it with ``nonlinearity="relu"``; see `LSTM`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        self.nonlinearity = _checked(nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype=dtype, device=device
        )

    def _step(self) -> Step:
        return _rnn_step(self.nonlinearity)


def _checked(nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise ShapeError(f"cannot make an RNN of {nonlinearity!r}: its nonlinearity is 'tanh' or 'relu'")
    return nonlinearity


class LSTM(_Recurrent):
    """Long short-term memory over sequences.

    Parameters
    ----------
    input_size, hidden_size : int
        Features of inputs and of states.
    num_layers : int
        How many layers there are, each over the outputs of the one before.
    bias : bool
        Whether gates have biases: one beside the input's weights, one beside the state's.
    batch_first : bool
        Whether sequences are [N, length, features]; else they are [length, N, features].
    dropout : float
        With which probability an output between layers is dropped in training.
    bidirectional : bool
        Whether there is a second state that runs backwards; outputs are both, one after the other.
    dtype, device : optional
        Of the parameters; float32 and the default device.

    Examples
    --------
    >>> import polygrad as pg
    >>> layer = pg.nn.LSTM(3, 5, num_layers=2, batch_first=True)
    >>> out, (h, c) = layer(pg.ones((2, 4, 3), dtype=pg.float32))
    >>> out.shape, h.shape, c.shape
    ((2, 4, 5), (2, 2, 5), (2, 2, 5))
    """

    gates = 4
    states = 2

    def _step(self) -> Step:
        return _lstm_step


class GRU(_Recurrent):
    """Gated recurrent units over sequences; see `LSTM` for the parameters. The state is one array."""

    gates = 3

    def _step(self) -> Step:
        return _gru_step


class _Cell(Module):
    """One step of a recurrent layer."""

    gates = 1
    states = 1

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: Any = None, device: Any = None
    ) -> None:
        self.input_size, self.hidden_size = input_size, hidden_size
        limit, rows = 1.0 / math.sqrt(max(1, hidden_size)), self.gates * hidden_size

        def start(*shape: int) -> Array:
            return init.uniform(shape, -limit, limit, dtype=dtype, device=device)

        self.weight_ih = Parameter(start(rows, input_size))
        self.weight_hh = Parameter(start(rows, hidden_size))
        self.bias_ih = Parameter(start(rows), no_decay=True) if bias else None
        self.bias_hh = Parameter(start(rows), no_decay=True) if bias else None

    def _step(self) -> Step:
        raise NotImplementedError

    def forward(self, x: Array, hx: Any = None) -> Any:
        """Return the new state for inputs [N, input_size] and a state [N, hidden_size], zeros unless given."""
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"cannot apply {type(self).__name__}({self.input_size}, {self.hidden_size}) to shape {list(x.shape)}: "
                f"it takes [N, {self.input_size}]"
            )
        line = x if x.ndim == 2 else FUNCTIONS["expand_dims"](x, 0)  # noqa: PLR2004  [N, features]
        shape = (line.shape[0], self.hidden_size)
        zero = FUNCTIONS["zeros"](shape, dtype=x.dtype, device=x.device)
        given = (zero,) * self.states if hx is None else (hx,) if isinstance(hx, Array) else tuple(hx)
        state = tuple(h if h.ndim == 2 else FUNCTIONS["expand_dims"](h, 0) for h in given)  # noqa: PLR2004  as above
        if len(state) != self.states or any(h.shape != shape for h in state):
            raise ShapeError(
                f"cannot step from states of shapes {[list(h.shape) for h in state]}: they are {list(shape)}"
            )
        given_part = _linear(line, self.weight_ih, self.bias_ih)
        new = self._step()(given_part, state, self.weight_hh, self.bias_hh, self.hidden_size)
        new = new if x.ndim == 2 else tuple(FUNCTIONS["squeeze"](h, 0) for h in new)  # noqa: PLR2004  as above
        return new if self.states > 1 else new[0]

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.input_size}, {self.hidden_size}"


class RNNCell(_Cell):
    """One step of `RNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        self.nonlinearity = _checked(nonlinearity)
        super().__init__(input_size, hidden_size, bias, dtype=dtype, device=device)

    def _step(self) -> Step:
        return _rnn_step(self.nonlinearity)


class LSTMCell(_Cell):
    """One step of `LSTM`; the state is the pair (h, c)."""

    gates = 4
    states = 2

    def _step(self) -> Step:
        return _lstm_step


class GRUCell(_Cell):
    """One step of `GRU`."""

    gates = 3

    def _step(self) -> Step:
        return _gru_step
