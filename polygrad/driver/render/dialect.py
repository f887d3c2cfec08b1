"""Dialects: how OpenCL C, CUDA C++ and C99 spell what a rendered kernel needs.

Here: one frozen table a language (`OPENCL`, `CUDA`, `C99`): types, qualifiers, index expressions, barriers, literals,
names of mathematical functions, conversions of bits, vector loads.
Not here: what an instruction means (`expressions.py`), how a kernel is laid out (`gpu_style.py`, `cpu_style.py`).

In a register a bool is a C ``bool`` (``_Bool``), in memory a byte. float16 and bfloat16 are 16 bits without
arithmetic in both places: the instruction set only moves, selects and casts them. In OpenCL vectors a bool is a mask,
an ``int`` vector of 0 and -1.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from polygrad.driver.ir import ITEMSIZE, kind

UNSIGNED = {"int8": "uint8", "int16": "uint16", "int32": "uint32", "int64": "uint64"}
SIGNED = {u: s for s, u in UNSIGNED.items()}

_C_TYPES = {
    "bool": "unsigned char", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int", "uint64": "unsigned long long",
    "float32": "float", "float64": "double", "float16": "unsigned short", "bfloat16": "unsigned short",
}  # fmt: skip
_OPENCL_TYPES = {
    "bool": "uchar", "int8": "char", "int16": "short", "int32": "int", "int64": "long",
    "uint8": "uchar", "uint16": "ushort", "uint32": "uint", "uint64": "ulong",
    "float32": "float", "float64": "double", "float16": "ushort", "bfloat16": "ushort",
}  # fmt: skip

# The functions whose name is not the op's.
_MATH_NAMES = {"absolute": "fabs", "round": "rint"}


def bits_of(value: float, dtype: str) -> int:
    """Return the bits of *value* rounded to a float dtype, ties to even.

    >>> hex(bits_of(1.0, "float16")), hex(bits_of(float("inf"), "bfloat16")), hex(bits_of(0.1, "float32"))
    ('0x3c00', '0x7f80', '0x3dcccccd')
    """
    value = float(value)
    if dtype == "float64":
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])
    if dtype == "float32":
        return int(struct.unpack("<I", struct.pack("<f", _fit(value, "<f")))[0])
    if dtype == "float16":
        return int(struct.unpack("<H", struct.pack("<e", _fit(value, "<e")))[0])
    if math.isnan(value):
        return 0x7FC0
    word = int(struct.unpack("<I", struct.pack("<f", _to_odd(value)))[0])
    return (word + 0x7FFF + ((word >> 16) & 1)) >> 16


def _fit(value: float, form: str) -> float:
    """Return *value*, or an infinity where it rounds beyond the largest finite number of the struct format *form*."""
    try:
        struct.pack(form, value)
    except OverflowError:
        return math.copysign(math.inf, value)
    return value


def _to_odd(value: float) -> float:
    """Return *value* rounded to float32 such that rounding once more to bfloat16 is as good as rounding once."""
    near = struct.unpack("<f", struct.pack("<f", _fit(value, "<f")))[0]
    word = struct.unpack("<I", struct.pack("<f", near))[0]
    if near == value or math.isinf(value) or word & 1:
        return float(near)
    return float(struct.unpack("<f", struct.pack("<I", word - 1 if abs(near) > abs(value) else word + 1))[0])


def rounded(value: float, dtype: str) -> float:
    """Return *value* rounded to float32 or float64.

    >>> rounded(0.1, "float32")
    0.10000000149011612
    """
    return (
        float(struct.unpack("<f", struct.pack("<f", _fit(float(value), "<f")))[0])
        if dtype == "float32"
        else float(value)
    )


def wrapped(value: int, dtype: str) -> int:
    """Return the integer *value* wrapped into an integer dtype.

    >>> wrapped(300, "uint8"), wrapped(200, "int8")
    (44, -56)
    """
    bits = 8 * ITEMSIZE[dtype]
    value = int(value) & ((1 << bits) - 1)
    return value - (1 << bits) if dtype in UNSIGNED and value >> (bits - 1) else value


def argument_dtype(dtype: str) -> str:
    """Return the dtype in which a launch scalar of *dtype* travels: bools as uint8, 16-bit floats as their bits."""
    return {"bool": "uint8", "float16": "uint16", "bfloat16": "uint16"}.get(dtype, dtype)


def argument_value(value: float, dtype: str) -> bool | int | float:
    """Return what to pass for a launch scalar of *dtype*: a number of `argument_dtype`.

    >>> argument_value(True, "bool"), argument_value(1.0, "float16"), argument_value(-1, "uint8")
    (1, 15360, 255)
    """
    if dtype in ("float16", "bfloat16"):
        return bits_of(value, dtype)
    if dtype == "bool":
        return int(bool(value))
    return float(value) if kind(dtype) == "float" else wrapped(int(value), dtype)


@dataclass(frozen=True, eq=False)
class Dialect:
    """One language. `width` is everywhere the number of elements of a vector value, 1 for a scalar."""

    name: str
    types: Mapping[str, str]  # of memory, by dtype
    bool_type: str
    function: str  # qualifier of a helper function
    prelude: str  # opens every source text
    options: tuple[str, ...]  # flags without which the compiler would not keep to the semantics
    long_suffix: str  # of a 64-bit literal
    group_id: tuple[str, str, str] = ("", "", "")
    local_id: tuple[str, str, str] = ("", "", "")
    group_count: tuple[str, str, str] = ("", "", "")
    barrier: str = ""
    unroll: str = ""
    shuffles: bool = False  # a warp of 32 can exchange registers
    vectors: bool = False  # the language computes with vectors
    suffixed: bool = True  # mathematical functions of float32 end in f
    streamed: int = 0  # bytes that a kernel writes from which on they go past the cache; 0: never
    wide_sums: bool = False  # there is always float64, so that sums of float32 may be accumulated in it
    global_space: str = ""
    local_space: str = ""
    restrict: str = "restrict"
    _bitcasts: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<dialect {self.name}>"

    def memory(self, dtype: str, width: int = 1) -> str:
        """Return the type of an element, or of a vector of elements, in memory."""
        if width == 1:
            return self.types[dtype]
        return f"{self.types[dtype]}{width}" if self.vectors else f"pg_{dtype}x{width}"

    def register(self, dtype: str, width: int = 1) -> str:
        """Return the type of a value in a register.

        >>> OPENCL.register("bool"), OPENCL.register("bool", 8), OPENCL.register("float16"), CUDA.register("int64")
        ('bool', 'int8', 'ushort', 'long long')
        """
        if dtype == "bool":
            return self.bool_type if width == 1 else f"int{width}"
        return self.types[dtype] if width == 1 else f"{self.types[dtype]}{width}"

    def literal(self, value: float, dtype: str, width: int = 1) -> str:
        """Return *value* as an expression of *dtype*, exact; it can stand anywhere in an expression.

        >>> OPENCL.literal(0.5, "float32"), OPENCL.literal(float("-inf"), "float32"), CUDA.literal(-1, "int64")
        ('0x1.0000000000000p-1f', 'as_float(0xff800000u)', '(-1LL)')
        >>> C99.literal(1.0, "float16"), OPENCL.literal(True, "bool"), OPENCL.literal(1, "float32", 4)
        ('((unsigned short)0x3c00u)', '1', '((float4)(0x1.0000000000000p+0f))')
        """
        one = self._scalar_literal(value, dtype)
        if width == 1:
            return one
        if dtype == "bool":
            one = "-1" if value else "0"
        return f"(({self.register(dtype, width)})({one}))"

    def _scalar_literal(self, value: float, dtype: str) -> str:
        if dtype == "bool":
            return "1" if value else "0"
        if dtype in ("float16", "bfloat16"):
            return f"(({self.types[dtype]}){bits_of(value, dtype):#06x}u)"
        if kind(dtype) == "float":
            return self._float_literal(float(value), dtype)
        return self._int_literal(wrapped(int(value), dtype), dtype)

    def _float_literal(self, value: float, dtype: str) -> str:
        value = rounded(value, dtype)
        if not math.isfinite(value):
            carrier = "uint32" if dtype == "float32" else "uint64"
            suffix = "u" if dtype == "float32" else "u" + self.long_suffix
            return self.bitcast(f"{bits_of(value, dtype):#x}{suffix}", carrier, dtype)
        text = value.hex() + ("f" if dtype == "float32" else "")
        return f"({text})" if text.startswith("-") else text

    def _int_literal(self, value: int, dtype: str) -> str:
        narrow, wide = ITEMSIZE[dtype] < ITEMSIZE["int32"], ITEMSIZE[dtype] > ITEMSIZE["int32"]
        suffix = ("u" if dtype.startswith("u") else "") + (self.long_suffix if wide else "")
        if not narrow and value == -(1 << (8 * ITEMSIZE[dtype] - 1)):
            text = f"({value + 1}{suffix} - 1)"  # the negated literal of the least integer does not fit its own type
        else:
            text = f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"
        return f"(({self.types[dtype]}){text})" if narrow else text

    def math(self, op: str, dtype: str) -> str:
        """Return the name of the function that computes *op* on a float dtype.

        >>> OPENCL.math("exp", "float32"), CUDA.math("exp", "float32"), C99.math("round", "float64")
        ('exp', 'expf', 'rint')
        """
        name = _MATH_NAMES.get(op, op)
        return name + "f" if self.suffixed and dtype == "float32" else name

    def convert(self, text: str, dtype: str, width: int = 1) -> str:
        """Return the C conversion of a number to another number type; see `Expressions.cast` for the IR's cast."""
        if width == 1:
            return f"(({self.types[dtype]})({text}))"
        return f"convert_{self.types[dtype]}{width}({text})"

    def bitcast(self, text: str, source: str, target: str, width: int = 1) -> str:
        """Return the bits of *text* as another dtype of the same size; neither is bool."""
        if source == target:
            return text
        if self.vectors:
            return f"as_{self.types[target]}{'' if width == 1 else width}({text})"
        if kind(source) == kind(target) == "int" or "float16" in source or "float16" in target:
            return f"(({self.types[target]})({text}))"
        carrier = {4: "int32", 8: "int64"}[ITEMSIZE[source]]
        if kind(source) == "float":
            cast = self._bitcasts[source, carrier]
            return f"(({self.types[target]}){cast}({text}))"
        return f"{self._bitcasts[carrier, target]}(({self.types[carrier]})({text}))"

    def parameter(self, dtype: str, name: str, *, const: bool) -> str:
        """Return the declaration of a buffer argument.

        >>> OPENCL.parameter("float32", "b0", const=True), CUDA.parameter("bool", "b1", const=False)
        ('__global const float* restrict b0', 'unsigned char* __restrict__ b1')
        """
        return f"{self.global_space}{'const ' if const else ''}{self.types[dtype]}* {self.restrict} {name}"

    def pointer(self, name: str, dtype: str, width: int = 1, *, const: bool) -> str:
        """Return the buffer argument *name* as a pointer to elements, or vectors of elements, of *dtype*."""
        return f"(({self.global_space}{'const ' if const else ''}{self.memory(dtype, width)}*){name})"

    def shared(self, dtype: str, name: str, size: int) -> str:
        """Declare an array in the memory that a group shares; it stands at the head of a kernel's body."""
        return f"{self.local_space}{self.types[dtype]} {name}[{size}];"

    def element(self, vector: str, position: int) -> str:
        """Return one element of a vector that came from memory."""
        return f"{vector}.s{position:x}" if self.vectors else f"{vector}.e[{position}]"

    def vector_value(self, dtype: str, names: Sequence[str]) -> str:
        """Return elements as a vector of memory, to initialise a variable of its type.

        >>> OPENCL.vector_value("float32", ("a", "b")), CUDA.vector_value("bool", ("a", "b"))
        ('(float2)(a, b)', '{{(unsigned char)(a), (unsigned char)(b)}}')
        """
        if dtype == "bool":
            names = [f"({self.types['bool']})({name})" for name in names]
        inside = ", ".join(names)
        return f"({self.memory(dtype, len(names))})({inside})" if self.vectors else f"{{{{{inside}}}}}"

    def vector_types(self, needed: Sequence[tuple[str, int]]) -> str:
        """Return the declarations of the memory vectors that a source uses."""
        if self.vectors:
            return ""
        align = "__align__({0})" if self.name == "cuda" else "__attribute__((aligned({0})))"
        lines = []
        for dtype, width in sorted(set(needed)):
            size = align.format(min(16, ITEMSIZE[dtype] * width))
            lines.append(f"typedef struct {size} {{ {self.types[dtype]} e[{width}]; }} {self.memory(dtype, width)};")
        return "".join(line + "\n" for line in lines)

    def signature(
        self, name: str, parameters: Sequence[str], threads: tuple[int, int] = (1, 1), blocks: int = 0
    ) -> str:
        """Open a kernel of fixed group size; *blocks* is how many groups should share a multiprocessor, 0 for any."""
        inside = ", ".join(parameters)
        if self.name == "opencl":
            # A work-item alone has its vectors; Intel's compiler (2026.2, AVX-512) crashes where it makes wider ones.
            alone = ", vec_type_hint(float8)" if threads == (1, 1) else ""
            size = f"__attribute__((reqd_work_group_size({threads[0]}, {threads[1]}, 1){alone}))"
            return f"__kernel {size} void {name}({inside})"
        if self.name == "cuda":
            bounds = f"{threads[0] * threads[1]}, {blocks}" if blocks else f"{threads[0] * threads[1]}"
            return f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({inside})'
        return f"void {name}({inside})"

    def compare_and_swap(self, pointer: str, expected: str, value: str) -> str:
        """Return the atomic exchange of an int, the value before it as the result."""
        call = {"opencl": "atomic_cmpxchg", "cuda": "atomicCAS", "c99": "__sync_val_compare_and_swap"}[self.name]
        return f"{call}({pointer}, {expected}, {value})"


OPENCL = Dialect(
    name="opencl",
    types=_OPENCL_TYPES,
    bool_type="bool",
    function="static inline",
    prelude="#pragma OPENCL FP_CONTRACT OFF\n"
    "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n",
    options=(),
    long_suffix="L",
    group_id=("get_group_id(0)", "get_group_id(1)", "get_group_id(2)"),
    local_id=("get_local_id(0)", "get_local_id(1)", "get_local_id(2)"),
    group_count=("get_num_groups(0)", "get_num_groups(1)", "get_num_groups(2)"),
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    unroll="#pragma unroll",
    vectors=True,
    suffixed=False,
    global_space="__global ",
    local_space="__local ",
)

CUDA = Dialect(
    name="cuda",
    types=_C_TYPES,
    bool_type="bool",
    function="static __device__ __forceinline__",
    prelude="",
    options=("--fmad=false",),
    long_suffix="LL",
    group_id=("blockIdx.x", "blockIdx.y", "blockIdx.z"),
    local_id=("threadIdx.x", "threadIdx.y", "threadIdx.z"),
    group_count=("gridDim.x", "gridDim.y", "gridDim.z"),
    barrier="__syncthreads();",
    unroll="#pragma unroll",
    shuffles=True,
    local_space="__shared__ ",
    restrict="__restrict__",
    _bitcasts={
        ("float32", "int32"): "__float_as_int",
        ("int32", "float32"): "__int_as_float",
        ("float64", "int64"): "__double_as_longlong",
        ("int64", "float64"): "__longlong_as_double",
    },
)

C99 = Dialect(
    name="c99",
    types=_C_TYPES,
    bool_type="_Bool",
    function="static inline",
    prelude="#include <math.h>\n"
    "typedef union { float f; int i; } pg_word;\n"
    "typedef union { double f; long long i; } pg_double_word;\n"
    "static inline int pg_float_as_int(float f) { pg_word w; w.f = f; return w.i; }\n"
    "static inline float pg_int_as_float(int i) { pg_word w; w.i = i; return w.f; }\n"
    "static inline long long pg_double_as_long(double f) { pg_double_word w; w.f = f; return w.i; }\n"
    "static inline double pg_long_as_double(long long i) { pg_double_word w; w.i = i; return w.f; }\n",
    options=("-std=c99", "-ffp-contract=off", "-fno-math-errno"),
    wide_sums=True,
    long_suffix="LL",
    _bitcasts={
        ("float32", "int32"): "pg_float_as_int",
        ("int32", "float32"): "pg_int_as_float",
        ("float64", "int64"): "pg_double_as_long",
        ("int64", "float64"): "pg_long_as_double",
    },
)
