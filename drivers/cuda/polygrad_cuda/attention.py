"""Attention and its backward pass: which tiles, which strides, what is launched, and when the vendor's library does it.

Here: `Attention`, called by the driver's `op_attention` and `op_attention_backward`; how CUDA C++ spells what the text
leaves open. Not here: the kernels (`polygrad.driver.render.attention`, which OpenCL shares), cuDNN
(`attention_vendor.py`).

The backward pass keeps the slopes of scores of as many heads at once as fit `KEPT`; of a head for which there is no
room they are made twice.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from polygrad.driver import Ref
from polygrad.driver.render.attention import (
    DELTA,
    FORWARD,
    GATHER,
    GROUP,
    KEYS,
    QUERIES,
    Tiling,
    attention_text,
    tiling_for,
)
from polygrad_cuda.attention_vendor import vendor_attention
from polygrad_cuda.launching import Launcher
from polygrad_cuda.sources import loads_and_stores

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: more than 48 KiB have to be asked for
KEPT = 224 << 20  # bytes of slopes that the backward pass may have in memory at once
GATHERED = Tiling(0, 0, 4, 4)  # sizes of the kernels that make and use what is kept; those of KEYS must be equal
NARROW = ("float16", "bfloat16")

WORDS = """
typedef long long LONG;
struct __align__(16) VEC { VALUE x, y, z, w; };
#define MAKE make
static __device__ __forceinline__ VEC make(VALUE x, VALUE y, VALUE z, VALUE w) { return VEC{x, y, z, w}; }
#define KERNEL extern "C" __global__ __launch_bounds__(256, RESIDENT)
#define DEVICE static __device__ __forceinline__
#define GLOBAL
#define LOCAL
#define POOL(n) extern __shared__ VEC pool[];
#define ROOM 0
#define UNROLL _Pragma("unroll")
#define UNROLL4 _Pragma("unroll 4")
#define THREAD ((int)threadIdx.x)
#define WORK ((LONG)blockIdx.x)
#define BARRIER __syncthreads();
#define ROW_BARRIER __syncwarp();
#define LOAD(p, i) load((p)[i])
#define STORE(v, p, i) (p)[i] = store(v)
template<int n> DEVICE void rows_max(VALUE (&m)[n], VALUE*, int, int)
{
    for (int w = 8; w; w >>= 1) for (int i = 0; i < n; i++) m[i] = GREATER(m[i], __shfl_xor_sync(~0u, m[i], w));
}
template<int n> DEVICE void rows_sum(VALUE (&m)[n], VALUE*, int, int)
{
    for (int w = 8; w; w >>= 1) for (int i = 0; i < n; i++) m[i] += __shfl_xor_sync(~0u, m[i], w);
}
"""
# Weights below 2^-126 count as 0, which saves the steps that exp2f takes for them.
_FLOAT = """
#define VALUE float
#define FMA(a, b, c) fmaf(a, b, c)
#define EXP2 power
static __device__ __forceinline__ float power(float x) { asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); return x; }
#define LOG2 log2f
#define GREATER fmaxf
#define INF __int_as_float(0x7f800000)
"""
_DOUBLE = """
#define VALUE double
#define FMA(a, b, c) fma(a, b, c)
#define EXP2 exp2
#define LOG2 log2
#define GREATER fmax
#define INF __longlong_as_double(0x7ff0000000000000ll)
"""
_WORD = "typedef unsigned short ELEMENT;\n"
_PLAIN = "typedef VALUE ELEMENT;\n#define load(x) (x)\n#define store(x) (x)\n"
_FOUR = "#define LOAD4(p, i) make(load((p)[i]), load((p)[(i) + 1]), load((p)[(i) + 2]), load((p)[(i) + 3]))\n"
_AT_ONCE = "#define LOAD4(p, i) (*(const VEC*)((p) + (i)))\n"


def text_of(
    kernel: str, tiling: Tiling, dtype: str, *, causal: bool, wide: bool, kept: bool = False, resident: int = 1
) -> str:
    """Return the source of one kernel, of which so many groups are to be *resident* on a multiprocessor at once.

    >>> "__shfl_xor_sync" in text_of(FORWARD, Tiling(64, 64, 4, 4), "float32", causal=True, wide=True)
    True
    """
    values = _DOUBLE if dtype == "float64" else _FLOAT
    elements = _WORD + loads_and_stores(dtype) if dtype in NARROW else _PLAIN
    groups = f"#define RESIDENT {resident}\n"
    loads = _FOUR if dtype in NARROW else _AT_ONCE
    body = attention_text(kernel, tiling, causal=causal, wide=wide, kept=kept)
    return values + elements + groups + WORDS + loads + body


class _Form(NamedTuple):
    """What a kernel is made for."""

    kernel: str
    dtype: str
    features: int
    value_features: int
    causal: bool
    wide: bool
    kept: bool


class _Problem(NamedTuple):
    """Operands of a call, and how it is to be done."""

    q: Ref
    k: Ref
    v: Ref
    scale: float
    causal: bool

    @property
    def sizes(self) -> list[int]:
        """What every kernel gets after offsets."""
        return [self.q.shape[0], self.q.shape[1], self.k.shape[1], self.q.shape[2], self.k.shape[2]]

    @property
    def strides(self) -> list[int]:
        """Those of the three operands."""
        return _strides(self.q, self.k, self.v)


class Attention:
    """The ops of one device."""

    def __init__(self, driver: "CudaDriver") -> None:
        self.driver = driver
        self._launchers: dict[Any, Launcher] = {}

    def forward(self, outs: Sequence[Ref], ins: Sequence[Ref], *, scale: float, causal: bool) -> None:
        """Queue attention."""
        if vendor_attention(self.driver, False, (*ins, *outs), scale=scale, causal=causal):
            return
        q, k, v = ins
        p = _Problem(q, k, v, scale, causal)
        pointers = self._addresses(*ins, *outs)
        work = (q.shape[1], q.shape[0] * q.shape[2])
        self._launch(FORWARD, p, work, ins, pointers, [*(0,) * 5, *p.sizes, *p.strides])

    def backward(self, outs: Sequence[Ref], ins: Sequence[Ref], *, scale: float, causal: bool) -> None:
        """Queue its backward pass."""
        if vendor_attention(self.driver, True, (*ins, *outs), scale=scale, causal=causal):
            return
        q, k, v, out, lse, g = ins
        p = _Problem(q, k, v, scale, causal)
        size = self.driver.itemsize(lse.dtype)
        batch, rows, columns, heads, shared = p.sizes
        tiling = self._tiling(KEYS, q.dtype, q.shape[-1], v.shape[-1])
        each = -(-rows // 4) * 4 * columns * (heads // shared) * size  # bytes of slopes, for one head of keys
        together = min(KEPT // each, batch * shared) if tiling.rows == GATHERED.rows else 0
        with self.driver.scratch() as scratch:
            delta = scratch.take(batch * rows * heads * size)
            if not together:
                self._queries(p, outs, ins, delta)
                self._keys(p, outs, ins, delta, (0, batch * shared), 0)
                return
            slopes = scratch.take(together * each)
            numbers = [0, 0, *p.sizes, *_strides(out, g)]
            work = (batch * heads * rows, 1)
            self._launch(DELTA, p, work, (out, g), [*self._addresses(out, g), delta], numbers, scaled=False)
            for skip in range(0, batch * shared, together):
                some = (skip, min(together, batch * shared - skip))
                self._keys(p, outs, ins, delta, some, slopes)
                pointers = [*self._addresses(k), slopes, *self._addresses(outs[0])]
                numbers = [0, 0, *some, *p.sizes, *_strides(k, outs[0])]
                self._launch(GATHER, p, (rows, some[1] * (heads // shared)), (k,), pointers, numbers)

    def _queries(self, p: _Problem, outs: Sequence[Ref], ins: Sequence[Ref], delta: int) -> None:
        out, lse, g = ins[3:]
        pointers = [*self._addresses(*ins, outs[0]), delta]
        numbers = [*(0,) * 7, *p.sizes, *_strides(outs[0], out, g, lse), *p.strides]
        work = (p.q.shape[1], p.q.shape[0] * p.q.shape[2])
        self._launch(QUERIES, p, work, (p.q, p.k, p.v, out, g), pointers, numbers)

    def _keys(
        self, p: _Problem, outs: Sequence[Ref], ins: Sequence[Ref], delta: int, some: tuple[int, int], slopes: int
    ) -> None:
        _, lse, g = ins[3:]
        pointers = [*self._addresses(p.q, p.k, p.v, lse, g), delta, *self._addresses(*outs[1:]), slopes]
        numbers = [*(0,) * 7, *some, *p.sizes, *_strides(*outs[1:], g, lse), *p.strides]
        self._launch(KEYS, p, (p.k.shape[1], some[1]), (p.q, p.k, p.v, g), pointers, numbers, kept=slopes != 0)

    def _addresses(self, *refs: Ref) -> list[int]:
        return [self.driver.address(r) for r in refs]

    def _launch(
        self, kernel: str, p: _Problem, work: tuple[int, int], read: Sequence[Ref], pointers: Sequence[int],
        numbers: Sequence[int], *, kept: bool = False, scaled: bool = True,
    ) -> None:  # fmt: skip
        """Launch a kernel on *work*: so many rows, in so many heads; *read* is of the operands' dtype."""
        dtype = p.q.dtype
        wide = all(r.shape[-1] % 4 == 0 and all(s % 4 == 0 for s in r.strides[:3]) for r in read)
        if wide and dtype not in NARROW:
            wide = all(a % 16 == 0 for a in self._addresses(*read))
        key = (_Form(kernel, dtype, p.q.shape[-1], p.v.shape[-1], p.causal, wide, kept), work)
        launcher = self._launchers.get(key)
        if launcher is None:
            if len(self._launchers) > 1024:  # noqa: PLR2004  shapes that keep changing must not grow it for ever
                self._launchers.clear()
            value = ("float64" if dtype == "float64" else "float32",) if scaled else ()
            slots = ("pointer",) * len(pointers) + ("int64",) * len(numbers) + value
            launcher = self._launchers[key] = self._made(*key, slots)
        launcher.call(*pointers, *numbers, *((p.scale,) if scaled else ()))

    def _tiling(self, kernel: str, dtype: str, features: int, value_features: int) -> Tiling:
        if kernel in (DELTA, GATHER):
            return GATHERED._replace(features=features, value_features=value_features)
        size, groups = (8, 1) if dtype == "float64" else (4, 2 if kernel == FORWARD else 1)
        room = self.driver.shared_optin
        return tiling_for(kernel, features, value_features, size, room, room=False, groups=groups)

    def _made(self, form: _Form, work: tuple[int, int], slots: tuple[str, ...]) -> Launcher:
        driver = self.driver
        tiling = self._tiling(*form[:4])
        shared = tiling.vectors(form.kernel, room=False) * 4 * (8 if form.dtype == "float64" else 4)
        twice = 2 * shared <= driver.shared_optin and form.dtype != "float64"  # registers for 512 work-items
        text = text_of(
            form.kernel, tiling, form.dtype, causal=form.causal, wide=form.wide, kept=form.kept, resident=1 + twice
        )
        function = driver.compiler.function(text, form.kernel)
        driver.cupy.cuda.driver.funcSetAttribute(function, MAX_DYNAMIC_SHARED, shared)
        length, heads = work
        grid = (heads * -(-length // tiling.tile), 1, 1)
        return Launcher(
            driver.route, function, grid, (GROUP, 1, 1), slots, fixed={}, stream=driver.stream, shared=shared
        )


def _strides(*refs: Ref) -> list[int]:
    """Return the first three strides of each."""
    return [s for ref in refs for s in ref.strides[:3]]
