"""What passes through the waist beside kernels: descriptions of drivers and devices, references to memory, answers.

Here: plain immutable data.
Not here: behaviour; the hooks that use these types are in `hookspecs.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from polygrad.driver.ir import MANDATORY, MANDATORY_REDUCTIONS

API = (1, 0)

Handle = Any  # opaque to the core: whatever a driver's allocate returns

# A prepared kernel: called with (buffers, ints, scalars); enqueues the work and returns. See ir.py for the arguments.
Prepared = Callable[[Sequence[Handle], tuple[int, ...], Sequence[bool | int | float]], Any]


class PreparedMany(Protocol):
    """A prepared kernel of a device with the feature `many`: it makes launches that do not wait for each other at once.

    The launches are of one kernel, two or more of them, each with its own entry of every argument: buffers,
    ints, scalars. No launch reads or writes what another one writes, kernels with a status word do not come, and
    results are those of the launches made one by one, bit for bit. A driver may make some of them together and others
    not; a bundle (`polygrad.driver.bundles`) takes the call for one launch.
    """

    def __call__(self, buffers: Sequence[Handle], ints: tuple[int, ...], scalars: Sequence[Any], /) -> Any:
        """Make one launch, as any `Prepared`."""

    def many(
        self,
        buffers: Sequence[Sequence[Handle]],
        ints: tuple[tuple[int, ...], ...],
        scalars: Sequence[Sequence[Any]],
        /,
    ) -> Any:
        """Make a launch for each entry of the three."""


class Done:
    """The type of DONE. pluggy's firstresult hooks read None as "nobody handled it", so finished work returns DONE."""

    def __repr__(self) -> str:
        return "DONE"


DONE = Done()


class Ref(NamedTuple):
    """Memory seen as an array: what an op of `launch_op` reads or writes.

    `offset` and `strides` count elements of `dtype` (a name such as ``"float32"``); strides may be 0 or negative for
    inputs. The memory belongs to the core: a driver does not keep a Ref beyond the launch.
    """

    handle: Handle
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class DriverInfo:
    """A driver as discovery sees it; making one touches no device and imports no vendor library."""

    name: str  # lower case, the entry point's name, the part of a device's name before the colon
    summary: str = ""
    requires: str = ""  # what must be installed, for people
    url: str = ""
    api: tuple[int, int] = API
    ir: tuple[int, int] = (1, 0)
    priority: int = 0  # set_device("auto") tries higher ones first


# What every device takes in one kernel: the longest decomposition of an op that a device may lack, pow of float64, has
# 303 instructions with its operands. A device that takes less is refused when it is opened.
LEAST_INSTRUCTIONS = 320


@dataclass(frozen=True)
class Limits:
    """What one device can take; bytes unless said otherwise."""

    max_alloc: int = 1 << 62
    total: int = 1 << 62
    alignment: int = 64  # of every allocation
    max_buffers: int = 64  # buffer arguments a kernel
    max_instructions: int = 512  # instructions a kernel, at least LEAST_INSTRUCTIONS
    partials: int = 64  # parts into which a partial store is best divided (rows are a multiple of no number)


@dataclass(frozen=True)
class Features:
    """Every ability beyond the mandatory, one polarity: true means can."""

    asynchronous: bool = False  # launches return before the work is done
    host_memory: bool = False  # handles are host memory that `polygrad_view` exposes without a copy
    capture: bool = False  # launches can be written down and made again at once: `polygrad_capture`
    subnormals: bool = True
    correctly_rounded: bool = False  # divide and sqrt within 0.5 ULP in float32
    thread_safety: Literal["serialised", "free"] = "serialised"
    fork: Literal["safe", "unsafe"] = "unsafe"
    many: bool = False  # prepared kernels make launches that do not wait for each other together: `PreparedMany`
    notices: bool = False  # the host reads what launches leave for it without a copy: `polygrad_notices`
    placed: bool = False  # results of attention_backward may be strided views: see `ACCELERATED_OPS`


@dataclass(frozen=True)
class DeviceInfo:
    """An open device, as the driver declares it. Declared means implemented: the suite checks both directions."""

    driver: str
    ordinal: int
    name: str  # of the hardware, for people
    dtypes: frozenset[str]  # of ir.DTYPES
    scalar_ops: frozenset[str] = MANDATORY  # of ir.SCALAR_OPS
    reductions: frozenset[str] = MANDATORY_REDUCTIONS
    # Names that launch_op takes beside "write" and "read". None, the default, becomes what DriverBase derives from its
    # op methods, or no ops at all, when the device is opened: an open device has a set. An empty set means none.
    ops: frozenset[str] = None  # type: ignore[assignment]
    limits: Limits = Limits()
    features: Features = Features()
    vendor: str = ""
    version: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)  # lines for reports

    @property
    def device(self) -> str:
        """The device's name, such as ``opencl:0``."""
        return f"{self.driver}:{self.ordinal}"


class MemoryInfo(NamedTuple):
    """Bytes of a device's memory as the vendor's library counts them."""

    free: int
    total: int


# The ops of launch_op, with their operands; `attrs` is a dict. All but write and read are optional and have a
# decomposition in the core.
ACCELERATED_OPS = {
    "write": "outs=(contiguous,), attrs data: a contiguous read-only memoryview of bytes. The driver has copied it, or "
    "is done with it, when it returns.",
    "read": "ins=(contiguous,), attrs into: a writable contiguous memoryview of bytes. Blocks; ordered after all "
    "launches before.",
    "copy": "outs=(contiguous,), ins=(strided,): same shape and dtype.",
    "matmul": "outs=(contiguous [..., m, n],), ins=([..., m, k], [..., k, n]): batch axes equal, or stride 0; any "
    "strides; float dtypes (float16 and bfloat16 accumulate in float32) and integers. attrs precision: 'highest' "
    "(default: float32 is float32) or 'tf32'; tune: if true, the driver may time several ways at the first use and "
    "keep the fastest, so that results may differ in their last bits between runs.",
    "matmul_add": "outs=(out contiguous [..., m, n],), ins=(a, b, c), attrs precision and tune: a and b as of matmul, "
    "float dtypes; c, of the shape and dtype of out, is contiguous or one row for all (strides 0, ..., 0, 1). out is "
    "a @ b + c, and with attrs activation 'relu' 0 wherever that is at most 0 (NaN stays). The product may be rounded "
    "before the sum, or kept as it was accumulated. No part of out is memory of an operand. To be declared beside "
    "matmul.",
    "attention": "outs=(out contiguous [b, l, h, e], lse contiguous [b, h, l]), ins=(q [b, l, h, d], k [b, s, j, d], v "
    "[b, s, j, e]): strided views whose last axis is contiguous; h a multiple of j, d and e at most 128, in float64 "
    "64; float dtypes, float16 and bfloat16 with sums in float32. attrs scale: a float, causal: row i sees columns j "
    "<= i alone. Head n of q looks at head n // (h / j) of k: out is softmax(scale q k^T) v, and lse, float32 (float64 "
    "for float64), the logarithm of the sum of exp(scale q k^T). Weights of what is not seen are 0; what stands there "
    "may be left unread.",
    "attention_backward": "outs=(dq, dk, dv, contiguous, shaped as q, k, v), ins=(q, k, v, out, lse, dout), attrs as "
    "attention, whose results out and lse are: the gradients for dout, that by out. Strides as there. To be declared "
    "with attention. With the feature placed the three results may be strided views with a contiguous last axis, parts "
    "of one array, say.",
    "random_bits": "outs=(contiguous uint32 [n],), attrs key: int < 2**64, counter: int < 2**64. Element e is word "
    "e % 4 of Philox-4x32-10 at counter (counter + e // 4 as the low 64 bits, 0 as the high) under key; words little "
    "end first.",
    "scatter_add": "outs=(contiguous [n, m],), ins=(index int64 [k], values contiguous [k, m]): out starts as zeros, "
    "then out[index[j]] += values[j], duplicates accumulate; negative indices count from the end. attrs status, a "
    "handle, and tag: a bad index is reported as a kernel does, at position 0, and its row is left out.",
    "scatter_reduce": "as scatter_add, attrs mode too: 'max', 'min' or 'multiply' of the values that go to a row; "
    "where none does, the mode's identity (the least or greatest value of the dtype, infinities for floats, 1).",
    "convolution": "outs=(y [n, o, *places],), ins=(x [n, c, *sizes], w [o, c / groups, *kernel]), contiguous, all "
    "float dtypes of the device, 1 to 3 axes after the channels. attrs stride, before, after, dilation: tuples of one "
    "int an axis, groups: int. y[n, o, p] is the sum over c and k of x[n, c, p * stride + k * dilation - before] * "
    "w[o, c, k], where x is 0 outside of itself; output o reads the channels of its group alone; float16 and bfloat16 "
    "accumulate in float32. attrs precision as matmul.",
    "convolution_input": "as convolution, outs=(x [n, c, *sizes],), ins=(y, w): its gradient by x; 0 where no window "
    "has read.",
    "convolution_weight": "as convolution, outs=(w [o, c / groups, *kernel],), ins=(x, y): its gradient by w.",
    "max_pool": "outs=(y [..., *places],), ins=(x [..., *sizes],), contiguous, float dtypes, 1 to 3 axes of sizes. "
    "attrs kernel, stride, before, after, dilation: tuples of one int an axis. y[..., p] is the greatest of x at p * "
    "stride + k * dilation - before, where x is -inf outside of itself; NaN if one is.",
    "max_pool_gradient": "outs=(dx, as x,), ins=(g, as y, x, y), attrs as max_pool, which gave y: each window gives "
    "its g to the elements that equal its y, in equal parts, what is outside of x counted too; sums where windows "
    "overlap. A device that has one of the two has both.",
    # From here on operands and results are contiguous, at any offset, and the axes before the last ones are a batch.
    # With attrs complex true a matrix of complex numbers has one axis more at its end, (real, imaginary); so have the
    # operands of transforms. Matrices without a result (singular, not positive definite) give one that is not finite.
    "scan": "outs=(contiguous [..., n],), ins=(contiguous [..., n],), one shape and dtype, n at least 1. attrs kind: "
    "'sum' or 'prod' (int and float dtypes) or 'max' or 'min' (bool too). Element i of a row is the reduction of the "
    "elements 0 .. i, in any grouping; integers wrap; float16 and bfloat16 are kept in float32 and rounded once an "
    "element; max and min are NaN from the first NaN on.",
    "recurrence": "outs=([..., n],), ins=(a [..., n], b [..., n]): y[i] = a[i] * y[i - 1] + b[i] along the last "
    "axis, y[0] = b[0]. Floats.",
    "sort": "outs=(values contiguous [..., n], positions contiguous int64 [..., n]), ins=(contiguous [..., n],), n at "
    "least 1, all dtypes. Rows in ascending order, stably: of equal elements the earlier one comes first. Every NaN "
    "counts as equal to each other one and greater than all else; -0.0 equals 0.0, and both keep their sign. "
    "values[..., i] is the element at positions[..., i] of the same row.",
    "sort_values": "outs=(contiguous [..., n],), ins=(contiguous [..., n],): the values of sort alone. To be offered "
    "if it is faster than sort; a device without it sorts with positions.",
    "nonzero": "outs=(contiguous int64 [count],), ins=(contiguous bool [n],): the positions at which the mask is true, "
    "ascending; count, at least 1, is how many there are.",
    "arg_extreme": "outs=(contiguous int64 [...],), ins=(contiguous [..., n],), n at least 1. attrs kind: 'max' or "
    "'min'. The position of the first element of a row that is equal to the greatest, or least; a NaN counts as "
    "either, and the first one wins. -0.0 equals 0.0. To be offered if it reads rows at the memory's speed.",
    "searchsorted": "outs=(contiguous int64 [..., m],), ins=(sorted [..., n], wanted [..., m]), one dtype, of any "
    "kind. How many elements of a row, which is sorted as sort does it, come before each wanted value of the same row; "
    "attrs right: those that are equal to it, too. Every NaN is equal to each other one and greater than all else.",
    "fft": "outs=([..., n, 2],), ins=([..., n, 2],): y[k] = sum over j of x[j] exp(-2 pi i j k / n), without a "
    "factor. attrs inverse: exp(+...) if true.",
    "rfft": "outs=([..., n // 2 + 1, 2],), ins=(real [..., n],): the first half of the transform of real values.",
    "irfft": "outs=(real [..., n],), ins=([..., n // 2 + 1, 2],), attrs n: the real values whose transform begins "
    "so, times n; frequencies 0 and n / 2 count as real.",
    "solve": "outs=(x [..., n, m],), ins=(a [..., n, n], b [..., n, m]), attrs complex: x with a x = b.",
    "triangular_solve": "as solve, attrs upper: which triangle of a is read; the other counts as zeros.",
    "cholesky": "outs=([..., n, n],), ins=([..., n, n],), attrs complex: the lower factor l with a = l l^H, zeros "
    "above it; a is read from its lower triangle.",
    "det": "outs=([...],), ins=([..., n, n],), attrs complex: the determinants.",
    "slogdet": "outs=(sign [...], logarithm real [...]), ins=([..., n, n],), attrs complex: of the determinants.",
    "cofactors": "outs=([..., n, n],), ins=([..., n, n],), attrs complex: the derivatives of the determinant by "
    "each element, whatever the rank.",
    "pinv": "outs=([..., n, m],), ins=([..., m, n], rtol real [..., 1]), attrs complex: pseudo-inverses; singular "
    "values up to rtol times the greatest count as 0.",
    "eigh": "outs=(values real [..., n], vectors [..., n, n]), ins=([..., n, n],), attrs complex, vectors: of "
    "Hermitian matrices, read from the lower triangle, values ascending; without vectors there is one result.",
    "eig": "outs=(values [..., n, 2], vectors [..., n, n, 2]), ins=([..., n, n],), attrs complex, vectors: complex "
    "values in any order, vectors of length 1; without vectors there is one result.",
    "svd": "outs=(u [..., m, k], s real [..., k], v^H [..., k, n]), ins=([..., m, n],), attrs complex, vectors, "
    "full: a = u diag(s) v^H, s descending; u [..., m, m] and v^H [..., n, n] if full; without vectors s alone.",
    "qr": "outs=(q [..., m, k], r [..., k, n]), ins=([..., m, n],), attrs complex, full: a = q r, q orthonormal, r "
    "upper triangular; k is m if full, else the smaller of m and n.",
}
