"""OpenCL C of Fourier transforms of any length.

Here: text, pure and testable without a device, and how a length is split. Not here: launches (`fft.py`).

A transform is passes over a scratch buffer, each from one half of it to the other: a work-item takes R numbers far
apart, turns them, transforms them by the definition and writes them where the next pass finds them (Stockham's order,
as in N. Govindaraju et al., "High performance discrete Fourier transforms on graphics processors", 2008). A length with
a prime factor above LARGEST is a convolution with a chirp (L. Bluestein, 1970), by transforms of a power of two.

Angles are reduced with integers to an eighth of a turn before cospi and sinpi see them.
"""

import math

from polygrad_opencl.source import CHUNKS, PRELUDE, STRIDED

LARGEST = 13  # the greatest prime that is a pass of its own


def radices(n: int) -> list[int]:
    """Return the passes of a length, or nothing if it has a prime factor above LARGEST.

    >>> radices(96), radices(1), radices(34)
    ([8, 4, 3], [1], [])
    """
    found, rest = [], n
    for radix in (8, 4, 2, 3, 5, 7, 11, 13):
        while rest % radix == 0:
            found.append(radix)
            rest //= radix
    return [] if rest > 1 else found or [1]


SHARED = """
inline PAIR times(PAIR a, PAIR b) { return (PAIR)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

// exp(2 pi i steps / n), 0 <= steps < n.
inline PAIR turn(long steps, long n)
{
    long four = 4 * steps, quarter = (2 * four + n) / (2 * n), rest = four - quarter * n;
    REAL angle = (REAL)rest / (REAL)n * (REAL)0.5, c = cospi(angle), s = sinpi(angle);
    return quarter == 0 || quarter == 4 ? (PAIR)(c, s) : quarter == 1 ? (PAIR)(-s, c)
        : quarter == 2 ? (PAIR)(-c, -s) : (PAIR)(s, -c);
}
"""

COPIES = """
// Rows of n complex numbers from rows as they come: 0 complex, 1 real, 2 the first m of a spectrum that mirrors itself.
kernel void enter(global const REAL* x, global PAIR* w, long ox, long n, long m, int kind, long total)
{
    x += ox;
    RANGE(total)
    for (long e = FIRST; e < LAST; e += STEP) {
        long row = e / n, j = e % n;
        if (kind == 0) w[e] = vload2(e, x);
        else if (kind == 1) w[e] = (PAIR)(x[e], (REAL)0);
        else {
            PAIR v = vload2(row * m + (j < m ? j : n - j), x);
            w[e] = (PAIR)(v.x, j == 0 || 2 * j == n ? (REAL)0 : j < m ? v.y : -v.y);
        }
    }
}

// The first m of each row of n numbers: 0 complex, 1 their real parts.
kernel void leave(global const PAIR* w, global REAL* y, long from, long oy, long n, long m, int kind, long total)
{
    y += oy;
    RANGE(total)
    for (long e = FIRST; e < LAST; e += STEP) {
        PAIR v = w[from + e / m * n + e % m];
        if (kind == 0) vstore2(v, e, y);
        else y[e] = v.x;
    }
}

inline PAIR chirp(long j, long n, int sign)
{
    PAIR t = turn((long)((ulong)j * (ulong)j % (ulong)(2 * n)), 2 * n);
    return (PAIR)(t.x, -sign * t.y);
}

// Rows of n become rows of m: times the chirp's conjugate, then zeros.
kernel void spread(global PAIR* w, long from, long to, long n, long m, int sign, long total)
{
    RANGE(total)
    for (long e = FIRST; e < LAST; e += STEP) {
        long row = e / m, j = e % m;
        w[to + e] = j < n ? times(w[from + row * n + j], chirp(j, n, -sign)) : (PAIR)((REAL)0, (REAL)0);
    }
}

kernel void chirps(global PAIR* w, long to, long n, long m, int sign)
{
    RANGE(m)
    for (long j = FIRST; j < LAST; j += STEP) {
        long d = j < n ? j : m - j;
        w[to + j] = d < n ? chirp(d, n, sign) : (PAIR)((REAL)0, (REAL)0);
    }
}

kernel void multiply(global PAIR* w, long a, long b, long m, long total)
{
    RANGE(total)
    for (long e = FIRST; e < LAST; e += STEP) w[a + e] = times(w[a + e], w[b + e % m]);
}

kernel void gather(global PAIR* w, long from, long to, long n, long m, int sign, long total)
{
    RANGE(total)
    for (long e = FIRST; e < LAST; e += STEP) {
        long row = e / n, j = e % n;
        w[to + e] = times(w[from + row * m + j], chirp(j, n, -sign)) / (REAL)m;
    }
}
"""

STEP = """
// One pass of radix R: `done` is the product of the radices before.
kernel void pass(global PAIR* w, long from, long to, long n, long done, int sign, long total)
{
    long part = n / R;
    RANGE(total)
    for (long e = FIRST; e < LAST; e += STEP) {
        long row = e / part * n, j = e % part, low = j % done;
        PAIR v[R];
        for (int k = 0; k < R; k++) {
            PAIR t = turn(low * k, done * R);
            v[k] = times(w[from + row + j + k * part], (PAIR)(t.x, sign * t.y));
        }
        global PAIR* out = w + to + row + (j - low) * R + low;
        for (int q = 0; q < R; q++) {
            PAIR sum = v[0];
            for (int k = 1; k < R; k++) {
                int at = q * k % R;
                sum += times(v[k], (PAIR)(COSINE[at], sign * SINE[at]));
            }
            out[q * done] = sum;
        }
    }
}
"""


def _head(dtype: str, chunked: bool) -> str:
    name = {"float32": "float", "float64": "double"}[dtype]
    return PRELUDE + (CHUNKS if chunked else STRIDED) + f"#define REAL {name}\n#define PAIR {name}2\n" + SHARED


def copies(dtype: str, *, chunked: bool) -> str:
    """Return the program with kernels enter, leave, spread, chirps, multiply and gather."""
    return _head(dtype, chunked) + COPIES


def one_pass(dtype: str, radix: int, *, chunked: bool) -> str:
    """Return the program with kernel pass of a radix.

    >>> "#define R 5" in one_pass("float32", 5, chunked=False)
    True
    """
    angles = [2 * math.pi * k / radix for k in range(radix)]
    suffix = "f" if dtype == "float32" else ""
    tables = "".join(
        f"constant REAL {name}[{radix}] = {{{', '.join(f'{f(a):.17e}{suffix}' for a in angles)}}};\n"
        for name, f in (("COSINE", math.cos), ("SINE", math.sin))
    )
    return _head(dtype, chunked) + f"#define R {radix}\n" + tables + STEP
