"""Functions of float32 vectors as text, for compilers that call their own out of line.

Here: exp, log, tanh and erf of OpenCL vectors, in a few multiplications and additions each, without a branch, as the
statements of a function of `a`. ``#`` stands for the length of vectors.
Not here: which expressions use them (`expressions.py`), the functions of other dtypes and of single numbers.

PoCL calls its built-in functions, so that a loop around one keeps no vector in a register; these become part of the
loop. Multiplications and additions may be contracted here, in every place alike: the file's pragma forbids it, these
functions' allows it. Errors are below 2 ULP with contraction and without.

Sources of the coefficients: Cephes (S. Moshier, netlib.org/cephes: `logf`, `tanhf`); erf is by N. Juffa.
"""


def _horner(x: str, *coefficients: float) -> str:
    """Return a polynomial, coefficients from the highest power down.

    >>> _horner("x", 2.0, 1.0, 0.5)
    '((2.0f*x + 1.0f)*x + 0.5f)'
    """
    text = f"{coefficients[0]!r}f"
    for c in coefficients[1:]:
        text = f"({text}*{x} + {c!r}f)"
    return text


# 2**n * exp(r), r within half of log(2), by the polynomial of degree 6 whose greatest relative error is least (3e-9).
# The scale is applied in two steps, so that results may be subnormal; t holds n in the low bits of its significand.
_P = _horner("r", 1.381453825e-3, 8.368745446e-3, 4.166838899e-2, 1.666652113e-1, 4.999999404e-1, 1.0, 1.0)
_EXP = f"""
    float# c = a > 89.0f ? (float#)(89.0f) : a;
    c = c < -104.0f ? (float#)(-104.0f) : c;
    const float# t = c*1.44269504f + 12582912.0f, n = t - 12582912.0f;
    float# r = n*-0.693359375f + c;
    r = n*2.12194440e-4f + r;
    const float# q = {_P};
    const uint# first = as_uint#(as_int#(t) >> 1), second = as_uint#(t) - first;
    return q * as_float#((first << 23) + 0x3f800000u) * as_float#((second << 23) + 0x3f800000u);
"""

# log(m) + e * log(2), m in [sqrt(1/2), sqrt(2)); a subnormal is scaled first.
_P = _horner(
    "f", 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_LOG = f"""
    const int# small = a < 1.17549435e-38f;
    const int# bits = as_int#(small ? a*8388608.0f : a);
    const int# e = (bits - 0x3f3504f3) >> 23;
    const float# f = as_float#(bits - (e << 23)) - 1.0f, z = f*f;
    const float# n = convert_float#(e + (small ? (int#)(-23) : (int#)(0)));
    const float# p = {_P};
    float# y = n*-2.12194440e-4f + p*f*z;
    y = n*0.693359375f + (f + (z*-0.5f + y));
    y = a == INFINITY ? a : y;
    y = a == 0.0f ? (float#)(-INFINITY) : y;
    return (a < 0.0f) | (a != a) ? (float#)(NAN) : y;
"""

# An odd polynomial near 0, 1 - 2 / (exp(2|a|) + 1) elsewhere; the sign is put on at the end.
_P = _horner("z", -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_TANH = f"""
    const int# sign = as_int#(a) & (int#)(0x80000000);
    const float# x = as_float#(as_int#(a) ^ sign), z = x*x;
    const float# p = {_P};
    const float# near = p*z*x + x, far = 1.0f - 2.0f/(pg_exp_float32x#(x + x) + 1.0f);
    return as_float#(as_int#(x < 0.625f ? near : far) | sign);
"""

# An odd polynomial near 0, 1 - exp(a polynomial) elsewhere; the sign is put on at the end.
_P = _horner("z", -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_ERF = f"""
    const int# sign = as_int#(a) & (int#)(0x80000000);
    const float# x = as_float#(as_int#(a) ^ sign), z = x*x;
    const float# p = {_P};
    float# q = (x*-1.72853470e-5f + 3.83197126e-4f)*z + (x*-3.88396438e-3f + 2.42546219e-2f);
    q = ((q*x - 1.06777877e-1f)*x - 6.34846687e-1f)*x - 1.28717512e-1f;
    const float# near = p*x + x, far = 1.0f - pg_exp_float32x#(q*x - x);
    return as_float#(as_int#(x < 0.927734375f ? near : far) | sign);
"""

_BODIES = {"exp": _EXP, "log": _LOG, "tanh": _TANH, "erf": _ERF}
NAMES = frozenset(_BODIES)
CALLS_EXP = frozenset({"tanh", "erf"})


def body(op: str, width: int) -> str:
    """Return the statements of *op*; those of `CALLS_EXP` need a function ``pg_exp_float32x#`` before them.

    >>> print(body("tanh", 4).splitlines()[1])
        const int4 sign = as_int4(a) & (int4)(0x80000000);
    """
    return "#pragma OPENCL FP_CONTRACT ON" + _BODIES[op].replace("#", str(width)).rstrip()
