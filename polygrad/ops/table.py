"""What an op is, and the table of all of them.

Here: the `Op` record, the declarations (`elementwise`, `primitive`, `composite`) and the table they fill.
Not here: the ops themselves (the other modules of this package), nodes, devices.

An op is one decorated function; its name, doc and signature are the function's own.

elementwise   one IR instruction; the body, called with ``xp = numpy``, is its reference.
primitive     any other node that the schedule knows (reductions, movement, gather, ...); the body is its reference.
library       a call of the driver's own op with one or several results; each result is a node.
composite     written over the namespace `xp` of ops; its `reference` is independent: NumPy, never itself.

Derivatives. `vjp` holds for each operand a rule ``(xp, g, out, *operands, **attrs) -> gradient``, or None where the
derivative is zero or does not exist; the sweep sums a gradient over broadcast axes itself. `jvp` holds for each operand
``(xp, t, out, *operands, **attrs) -> tangent``. For an elementwise op the Jacobian is diagonal, so one rule is both.
The rule by which `vmap` reads an op is that of its kind (`batching.py`), or its own, `batch`.

Complex operands are pairs of real nodes. `complex` says what an op makes of them: "parts", the same op on the real and
on the imaginary parts; a function ``(xp, *operands, **attrs)``, which is called in its place when an operand is
complex; None, they are refused. A composite without a function is called as it is if its dtypes name "complex".
`slopes` holds for each operand of an analytic function its complex derivative ``(xp, *operands) -> node``; without it
the derivative of such a function is that of the real ops which it is recorded as.
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
        "batch",
        "body",
        "call",
        "compares",
        "complex",
        "dtypes",
        "fallback",
        "infer",
        "instr",
        "jvp",
        "kind",
        "kinds",
        "long",
        "lower",
        "name",
        "params",
        "placed",
        "public",
        "reference",
        "results",
        "samples",
        "second",
        "slopes",
        "strided",
        "tolerance",
        "verb",
        "vjp",
        "where",
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
        self.long: bool = facts.get("long", False)  # `lower` emits so many instructions that the schedule counts them
        self.infer: Callable[..., Any] | None = facts.get("infer")
        self.vjp: tuple[Rule | None, ...] | None = facts.get("vjp")
        self.jvp: tuple[Rule | None, ...] | None = facts.get("jvp")
        self.batch: Rule | None = facts.get("batch")  # where the rule of its kind (`batching.py`) does not do
        self.reference: Callable[..., Any] | None = facts.get("reference") or (None if kind == "composite" else body)
        self.samples: Samples | None = facts.get("samples")
        self.dtypes: str = facts.get("dtypes", "") or self.kinds
        self.complex: Callable[..., Any] | str | None = facts.get("complex")
        if self.complex is not None and "complex" not in self.dtypes:
            self.dtypes = f"{self.dtypes} complex"
        self.slopes: tuple[Rule, ...] | None = facts.get("slopes")
        self.call: str = facts.get("call", "")  # of a library op: what the driver calls it
        self.results: Callable[..., Any] | None = facts.get("results")
        self.params: Callable[..., dict[str, Any]] | None = facts.get("params")
        self.fallback: Callable[..., Any] | None = facts.get("fallback")
        self.strided: bool = facts.get("strided", False)  # of a library op: operands need not be in C order
        self.placed: bool = facts.get("placed", False)  # nor results, on devices with the feature `placed`
        self.public: bool = facts.get("public", True)
        self.where: str = facts.get("where", "main")  # the namespaces that show it: main, linalg, fft, special, several
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
    complex: Callable[..., Any] | str | None = None,  # noqa: A002  the fact's name
    slopes: tuple[Rule, ...] | None = None,
    where: str = "main",
    long: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op of one IR instruction, or of those that ``lower(builder, *values)`` emits: *long* if they are many.

    *domain* is where its operands are drawn from in tests: one pair, or one for each operand; None: it is tested by the
    function that is made of it.
    """

    def declare(body: Callable[..., Any]) -> Op:
        arity = len(inspect.signature(body).parameters) - 1
        if vjp is not None and len(vjp) != arity:
            raise TypeError(f"op {body.__name__!r} takes {arity} operands but has {len(vjp)} derivative rules")
        pairs = domain if domain is None or isinstance(domain[0], tuple) else (domain,) * arity
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
                samples=None if pairs is None else lambda draw: draw.elementwise(pairs),
                second=second,
                tolerance=tolerance,
                complex=complex,
                slopes=slopes,
                where=where,
                long=long,
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
    batch: Rule | None = None,
    complex: Callable[..., Any] | str | None = None,  # noqa: A002  the fact's name
) -> Callable[[Callable[..., Any]], Op]:
    """Declare a node that the schedule knows by *kind*. `infer(*avals, **attrs)` returns shape and dtype, or raises.

    *batch* says how `vmap` reads it, where the rule of its kind in `batching.py` does not do.
    """

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
                batch=batch,
                public=False,
                complex=complex,
            )
        )

    return declare


def library(
    *,
    results: Callable[..., Sequence[tuple[Any, Any]]],
    fallback: Callable[..., Any] | None,
    vjp: tuple[Rule | None, ...] | None,
    jvp: tuple[Rule | None, ...] | None,
    call: str = "",
    params: Callable[..., dict[str, Any]] | None = None,
    kinds: str = "float",
    verb: str = "",
    batch: Rule | None = None,
    strided: bool = False,
    placed: bool = False,
) -> Callable[[Callable[..., Any]], Op]:
    """Declare a call of a driver's op: along the last axes of its operands, the axes before are a batch.

    ``xp.<name>(*operands, *attrs)`` returns a tuple of nodes, one for each result (the node itself if there is one).

    Parameters
    ----------
    results : callable
        ``(*avals, *attrs) -> [(shape, dtype), ...]``, or raises what is wrong with them. No operand may be
        empty or 0-d and no result empty: the caller sees to it.
    fallback : callable or None
        ``(xp, *operands, *attrs) -> results`` over other ops, for devices that lack the op; None: such devices borrow
        the host's, which is counted and warned of.
    vjp, jvp : tuple of rules
        One for each operand, as ``(xp, g, out, *operands, index, *attrs)`` where *index* says which result *out* is;
        ``xp.sibling(out, k)`` is another result of the same call, ``xp.turned(g, order)`` a gradient with its axes in
        another order.
    call : str
        The op's name at the waist; this op's name without its underscore if it is left out.
    params : callable or None
        ``(*attrs) -> dict``: the attrs that the driver gets; none if left out.
    batch : callable, optional
        How `vmap` reads it, if examples do not simply stand along one more axis in front.
    strided : bool
        Whether operands may be views whose last axis alone is contiguous; if not, they are brought into C order first.
    placed : bool
        Whether results may be such views too, on devices with the feature `placed`.
    """

    def infer(*facts: Any) -> tuple[Any, Any]:
        count = 0
        while count < len(facts) and hasattr(facts[count], "ident"):
            count += 1
        return results(*facts[:count], *facts[count + 1 :])[facts[count]]  # type: ignore[no-any-return]

    def declare(body: Callable[..., Any]) -> Op:
        return _declare(
            Op(
                body.__name__,
                "library",
                body,
                infer=infer,
                results=results,
                fallback=fallback,
                vjp=vjp,
                jvp=jvp,
                call=call or body.__name__.rstrip("_"),
                params=params,
                strided=strided,
                placed=placed,
                kinds=kinds,
                verb=verb,
                batch=batch,
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
    complex: Callable[..., Any] | None = None,  # noqa: A002  the fact's name
    slopes: tuple[Rule, ...] | None = None,
    where: str = "main",
) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op written over `xp`, shown in the namespaces that *where* names: main, linalg, fft, special, several.

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
                complex=complex,
                slopes=slopes,
                where=where,
            )
        )

    return declare
