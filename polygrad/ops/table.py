"""What an op is, and the table of all of them.

Here: the `Op` record, the declarations (`elementwise`, `primitive`, `composite`) and the table they fill.
Not here: the ops themselves (the other modules of this package), nodes, devices.

An op is one decorated function; its name, doc and signature are the function's own.

elementwise   one IR instruction; the body, called with ``xp = numpy``, is its reference.
primitive     any other node that the schedule knows (reductions, movement, gather, ...); the body is its reference.
composite     written over the namespace `xp` of ops; its `reference` is independent: NumPy, never itself.

Derivatives. `vjp` holds for each operand a rule ``(xp, g, out, *operands, **attrs) -> gradient``, or None where the
derivative is zero or does not exist; the sweep sums a gradient over broadcast axes itself. `jvp` holds for each operand
``(xp, t, out, *operands, **attrs) -> tangent``. For an elementwise op the Jacobian is diagonal, so one rule is both.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

Rule = Callable[..., Any]
Samples = Callable[[Any], Sequence[tuple[tuple[Any, ...], dict[str, Any]]]]

TABLE: dict[str, "Op"] = {}


class Op:
    """One row of the table; compared and hashed by identity, so that it is a cheap part of keys."""

    __slots__ = (
        "body",
        "compares",
        "dtypes",
        "infer",
        "instr",
        "jvp",
        "kind",
        "kinds",
        "lower",
        "name",
        "public",
        "reference",
        "samples",
        "second",
        "tolerance",
        "verb",
        "vjp",
    )

    def __init__(self, name: str, kind: str, body: Callable[..., Any], **facts: Any) -> None:
        self.name = name
        self.kind = kind
        self.body = body
        self.verb: str = facts.get("verb") or name  # "cannot <verb> shapes ..."
        self.instr: str = facts.get("instr", "")
        self.kinds: str = facts.get("kinds", "")
        self.compares: bool = facts.get("compares", False)
        self.lower: Callable[..., Any] | None = facts.get("lower")
        self.infer: Callable[..., Any] | None = facts.get("infer")
        self.vjp: tuple[Rule | None, ...] | None = facts.get("vjp")
        self.jvp: tuple[Rule | None, ...] | None = facts.get("jvp")
        self.reference: Callable[..., Any] = facts.get("reference") or body
        self.samples: Samples | None = facts.get("samples")
        self.dtypes: str = facts.get("dtypes", "") or self.kinds
        self.public: bool = facts.get("public", True)
        self.second: bool = facts.get("second", True)  # gradgradcheck applies
        # A factor on the test's own; the reason stands beside the declaration.
        self.tolerance: float = facts.get("tolerance", 1.0)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    @property
    def doc(self) -> str:
        """The first line of the declaration's docstring."""
        return (inspect.getdoc(self.body) or "").splitlines()[0]

    @property
    def signature(self) -> inspect.Signature:
        """The signature that users see: the body's, without the namespace."""
        whole = inspect.signature(self.body)
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    @property
    def differentiable(self) -> bool:
        """Whether any operand has a derivative."""
        return self.vjp is not None and any(rule is not None for rule in self.vjp)


def _declare(op: Op) -> Op:
    if op.name in TABLE:
        raise TypeError(f"op {op.name!r} is declared twice")
    if not inspect.getdoc(op.body):
        raise TypeError(f"op {op.name!r} has no docstring")
    TABLE[op.name] = op
    return op


def elementwise(
    *,
    kinds: str,
    vjp: tuple[Rule | None, ...] | None,
    instr: str = "",
    lower: Callable[..., Any] | None = None,
    compares: bool = False,
    verb: str = "",
    public: bool = True,
    domain: Any = (-2.0, 2.0),
    second: bool = True,
    tolerance: float = 1.0,
) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op of one IR instruction, or of the few that ``lower(builder, *values)`` emits.

    *domain* is where its operands are drawn from in tests: one pair, or one for each operand.
    """

    def declare(body: Callable[..., Any]) -> Op:
        arity = len(inspect.signature(body).parameters) - 1
        if vjp is not None and len(vjp) != arity:
            raise TypeError(f"op {body.__name__!r} takes {arity} operands but has {len(vjp)} derivative rules")
        pairs = domain if isinstance(domain[0], tuple) else (domain,) * arity
        return _declare(
            Op(
                body.__name__,
                "elementwise",
                body,
                instr=instr or body.__name__,
                kinds=kinds,
                compares=compares,
                vjp=vjp,
                jvp=vjp,
                verb=verb,
                lower=lower,
                public=public,
                samples=lambda draw: draw.elementwise(pairs),
                second=second,
                tolerance=tolerance,
            )
        )

    return declare


def primitive(
    *,
    infer: Callable[..., Any],
    kind: str,
    vjp: tuple[Rule | None, ...] | None,
    jvp: tuple[Rule | None, ...] | None,
    samples: Samples | None = None,
    verb: str = "",
    kinds: str = "bool int float",
    instr: str = "",
) -> Callable[[Callable[..., Any]], Op]:
    """Declare a node that the schedule knows by *kind*. `infer(*avals, **attrs)` returns shape and dtype, or raises."""

    def declare(body: Callable[..., Any]) -> Op:
        return _declare(
            Op(
                body.__name__,
                kind,
                body,
                infer=infer,
                vjp=vjp,
                jvp=jvp,
                samples=samples,
                verb=verb,
                kinds=kinds,
                instr=instr,
                public=False,
            )
        )

    return declare


def composite(
    *,
    reference: Callable[..., Any] | None,
    samples: Samples | None = None,
    dtypes: str = "float",
    second: bool = True,
    tolerance: float = 1.0,
    differentiable: bool = True,
) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op written over `xp`.

    *reference* takes the same arguments as NumPy arrays; it is None only where a test by hand exists.
    """

    def declare(body: Callable[..., Any]) -> Op:
        return _declare(
            Op(
                body.__name__,
                "composite",
                body,
                reference=reference,
                samples=samples,
                dtypes=dtypes,
                second=second,
                tolerance=tolerance,
                vjp=(body,) if differentiable else None,
            )
        )

    return declare
