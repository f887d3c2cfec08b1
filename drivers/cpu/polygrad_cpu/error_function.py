"""The error function, which NumPy lacks, as passes over arrays.

Here: erf for float32 and float64. Not here: anything else.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# float32: x * P(x*x) / Q(x*x) on [-BEYOND, BEYOND], coefficients from the highest power down. Within 6 ULP.
# Source: the rational approximation that Eigen and XLA (`ErfImpl32`) use.
BEYOND = 3.7439211627767994
_P = (0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145, 1.128379143519084)
_Q = (
    -1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667,
    0.11098505178285362, 0.49746925110067538, 1.0,
)  # fmt: skip
_P32 = tuple(np.array(c, np.float32) for c in _P)
_Q32 = tuple(np.array(c, np.float32) for c in _Q)
_LOW, _HIGH, _ONE, _MINUS_ONE = (np.array(c, np.float32) for c in (-BEYOND, BEYOND, 1, -1))


def erf32(a: Array, out: Array, x: Array, square: Array, p: Array) -> None:
    """Write erf of float32 *a*; x, square and p are scratch of `out`'s shape. `out` may be `a`.

    >>> a = np.float32([0.0, 1.0]); erf32(a, a, *np.empty((3, 2), np.float32)); a.round(6)
    array([0.      , 0.842701], dtype=float32)
    """
    np.minimum(a, _HIGH, out=x)
    np.maximum(x, _LOW, out=x)
    np.multiply(x, x, square)
    _horner32(square, _P32, p)
    np.multiply(x, p, x)
    _horner32(square, _Q32, p)
    np.divide(x, p, out)
    np.minimum(out, _ONE, out=out)
    np.maximum(out, _MINUS_ONE, out=out)


def _horner32(x: Array, coefficients: tuple[Array, ...], out: Array) -> None:
    np.multiply(x, coefficients[0], out)
    for c in coefficients[1:-1]:
        np.add(out, c, out)
        np.multiply(out, x, out)
    np.add(out, coefficients[-1], out)


# float64: five ranges, each a rational function; coefficients from the constant term up.
# Source: fdlibm, s_erf.c (Sun Microsystems, 1993: "Permission to use, copy, modify, and distribute this software is
# freely granted, provided that this notice is preserved").
_SMALL = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02, -5.77027029648944159157e-03,
     -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04,
     -3.96022827877536812320e-06),
)  # fmt: skip
_MIDDLE = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01, 3.18346619901161753674e-01,
     -1.10894694282396677476e-01, 3.54783043256182359371e-02, -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01,
     1.36370839120290507362e-02, 1.19844998467991074170e-02),
)  # fmt: skip
_LARGE = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01, -6.23753324503260060396e+01,
     -1.62396669462573470355e+02, -1.84605092906711035994e+02, -8.12874355063065934246e+01,
     -9.81432934416914548592e+00),
    (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02,
     4.29008140027567833386e+02, 1.08635005541779435134e+02, 6.57024977031928170135e+00, -6.04244152148580987438e-02),
)  # fmt: skip
_LARGEST = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01, -1.60636384855821916062e+02,
     -6.37566443368389627722e+02, -1.02509513161107724954e+03, -4.83519191608651397019e+02),
    (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03,
     2.55305040643316442583e+03, 4.74528541206955367215e+02, -2.24409524465858183362e+01),
)  # fmt: skip
_AT_ONE = 8.45062911510467529297e-01
_BOUNDS = (0.84375, 1.25, 1 / 0.35, 6.0)


def erf64(a: Array, out: Array) -> None:
    """Write erf of float64 *a*. `out` may be `a`.

    >>> a = np.array([-0.5, 2.0, np.nan]); erf64(a, a); a.round(6)
    array([-0.5205  ,  0.995322,       nan])
    """
    a = np.array(np.broadcast_to(a, out.shape))
    x = np.abs(a)
    result = np.where(np.isnan(x), x, 1.0)
    small = x < _BOUNDS[0]
    part = a[small]
    result[small] = part + part * _ratio(part * part, _SMALL)
    middle = (x >= _BOUNDS[0]) & (x < _BOUNDS[1])
    result[middle] = _AT_ONE + _ratio(x[middle] - 1, _MIDDLE)
    for low, high, coefficients in ((_BOUNDS[1], _BOUNDS[2], _LARGE), (_BOUNDS[2], _BOUNDS[3], _LARGEST)):
        inside = (x >= low) & (x < high)
        part = x[inside]
        square = part * part
        result[inside] = 1 - np.exp(-square - 0.5625 + _ratio(1 / square, coefficients)) / part
    np.copysign(result, a, out, where=~small)
    np.copyto(out, result, where=small)


def _ratio(x: Array, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Array:
    p, q = (np.full_like(x, c[-1]) for c in coefficients)
    for value, terms in ((p, coefficients[0]), (q, coefficients[1])):
        for c in reversed(terms[:-1]):
            np.multiply(value, x, value)
            np.add(value, c, value)
    return np.asarray(p / q)
