"""Numbers as a reader wants them.

Here: times, rates, bytes, ratios and shares as short text.
Not here: tables.
"""

from polygrad.bench.judging import Ceiling
from polygrad.bench.work import Work

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_MIB = 1 << 20


def duration(seconds: float) -> str:
    """Return a time with three digits.

    >>> duration(0.00123456), duration(2.0), duration(4.5e-6)
    ('1.23 ms', '2.00 s', '4.50 us')
    """
    for unit, name in _UNITS:
        if seconds >= 0.9995 * unit or name == "ns":
            break
    return f"{seconds / unit:#.3g}".rstrip(".") + f" {name}"


def ratio(value: float) -> str:
    """Return a ratio.

    >>> [ratio(v) for v in (0.0123, 0.8, 12.0, 37.21, 1234.0)]
    ['x0.012', 'x0.80', 'x12.0', 'x37.2', 'x1234']
    """
    if value < 0.1:  # noqa: PLR2004  digits
        return f"x{value:.2g}"
    digits = 2 if value < 10 else 1 if value < 100 else 0  # noqa: PLR2004  digits
    return f"x{value:.{digits}f}"


def percent(share: float) -> str:
    """Return a share of a ceiling.

    >>> percent(0.873), percent(0.0021)
    ('87%', '0.2%')
    """
    return f"{100 * share:.0f}%" if share >= 0.01 else f"{100 * share:.1f}%"  # noqa: PLR2004  digits


def size(count: int) -> str:
    """Return an amount of memory in MiB.

    >>> size(3 << 20), size(1234 << 20)
    ('3.0 MiB', '1234 MiB')
    """
    mebibytes = count / _MIB
    return f"{mebibytes:.1f} MiB" if mebibytes < 100 else f"{mebibytes:.0f} MiB"  # noqa: PLR2004  digits


def rate(work: Work, seconds: float, ceiling: Ceiling) -> str:
    """Return what a second of the work comes to: of what limits it, or microseconds a node of a graph.

    >>> from polygrad.bench.work import table
    >>> rate(table("paper")["exp"], 0.01, Ceiling()), rate(table("paper")["record_1000"], 0.002, Ceiling())
    ('13.4 GB/s', '2.00 us/node')
    """
    if work.kind == "graph":
        return f"{1e6 * seconds / work.settings['nodes']:.2f} us/node"
    moving = work.nbytes / ceiling.copy if ceiling.copy else 0.0
    computing = work.flops / ceiling.matmul if ceiling.matmul else 0.0
    if work.flops and computing >= moving:
        teraflops = work.flops / seconds / 1e12
        return f"{teraflops:.3g} TFLOP/s" if teraflops >= 1 else f"{1e3 * teraflops:.3g} GFLOP/s"
    return f"{work.nbytes / seconds / 1e9:.3g} GB/s" if work.nbytes else ""
