"""Instructions as text: every scalar op, cast and reduction step with exactly the semantics of the table in `ir.py`.

Here: expressions over named values, the helper functions that they call, for scalars and for OpenCL vectors.
Not here: memory (`addressing.py`), the order of statements (the styles), the spelling of a language (`dialect.py`).

An expression is text that can stand as an operand; its operands must be names or such expressions without side effects.
Where C leaves something open (overflow, shift counts, division by zero, conversions out of range, NaN in a maximum)
the text decides it, so that compilers have nothing to exploit. `width` is 1, or the width of OpenCL vectors: keep those
within 32 bytes, for the built-in functions of PoCL 3.0 crash on longer ones on some processors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polygrad.driver.ir import ITEMSIZE, REDUCTIONS, SCALAR_OPS, Instr, kind
from polygrad.driver.render import vector_functions
from polygrad.driver.render.dialect import UNSIGNED, Dialect

_INFIX = {
    "less": "<", "less_equal": "<=", "equal": "==", "not_equal": "!=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
_MASKS = {
    "less": "(~{0} & {1})", "less_equal": "(~{0} | {1})", "equal": "(~({0} ^ {1}))", "not_equal": "({0} ^ {1})",
    "maximum": "({0} | {1})", "minimum": "({0} & {1})",
    "bitwise_and": "({0} & {1})", "bitwise_or": "({0} | {1})", "bitwise_xor": "({0} ^ {1})", "bitwise_invert": "(~{0})",
}  # fmt: skip
_BOOLS = {**{op: f"({{0}} {sign} {{1}})" for op, sign in _INFIX.items()},
          "maximum": "({0} | {1})", "minimum": "({0} & {1})",
          "bitwise_invert": "(!{0})"}  # fmt: skip
_WRAPPING = {"add": "+", "subtract": "-", "multiply": "*"}
_ARITHMETIC = {**_WRAPPING, "divide": "/"}
# PoCL 3.0 gets these wrong in vectors by thousands of ULP, even sin(1e-38); its scalar functions are right.
_LANEWISE = frozenset({"sin", "cos", "tan"})
_REDUCING = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


@dataclass(frozen=True)
class Form:
    """The types around one operation: the value's own, its unsigned twin, and a way to write constants of both."""

    dialect: Dialect
    dtype: str
    width: int

    @property
    def unsigned(self) -> str:
        """The unsigned dtype of this size."""
        return UNSIGNED.get(self.dtype, self.dtype)

    @property
    def carrier(self) -> str:
        """The unsigned dtype in which C computes without promotion to a signed int."""
        return self.unsigned if self.width > 1 or ITEMSIZE[self.dtype] >= ITEMSIZE["uint32"] else "uint32"

    @property
    def type(self) -> str:
        """The register type."""
        return self.dialect.register(self.dtype, self.width)

    def number(self, value: float) -> str:
        """Return a constant of the value's dtype."""
        return self.dialect.literal(value, self.dtype, self.width)

    def to_carrier(self, text: str) -> str:
        """Return the integer *text* as its unsigned carrier."""
        if self.width > 1:
            return self.dialect.bitcast(text, self.dtype, self.carrier, self.width)
        return self.dialect.convert(text, self.carrier)

    def from_carrier(self, text: str) -> str:
        """Return the unsigned *text* wrapped into the value's dtype."""
        if self.width > 1:
            return self.dialect.bitcast(text, self.carrier, self.dtype, self.width)
        return self.dialect.convert(text, self.dtype)


def _streaming(name: str, memory: str, element: str, space: str, plain: str) -> str:
    """Return a function that stores a vector past the cache, where it is aligned and the compiler can.

    *plain* must not look like the same store: LLVM would make one of the two, and forget about the cache.
    """
    return f"""static inline void {name}({memory} v, {space} {element}* p) {{
#ifdef __has_builtin
#if __has_builtin(__builtin_nontemporal_store)
    if (((ulong)p & (sizeof({memory}) - 1)) == 0) {{
        __builtin_nontemporal_store(v, ({space} {memory}*)p);
        return;
    }}
#endif
#endif
    {plain}
}}
"""


def _unaligned(kind_: str, width: int) -> tuple[str, str]:
    """Return the name and the text of what loads and stores vectors at the alignment of their elements.

    Clang can say so in a type. Its own vload and vstore are calls in PoCL, around which no vector stays in a register.
    """
    vector, name = f"{kind_}{width}", f"pg_{kind_}{width}"
    return name, (
        f"#ifdef __clang__\ntypedef {vector} __attribute__((aligned(sizeof({kind_})))) {name};\n"
        f"#define {name}_load(space, p) (*(space const {name}*)(p))\n"
        f"#define {name}_store(space, v, p) (*(space {name}*)(p) = (v))\n"
        f"#else\n#define {name}_load(space, p) vload{width}(0, p)\n"
        f"#define {name}_store(space, v, p) vstore{width}(v, 0, p)\n#endif\n"
    )


class Expressions:
    """Writes expressions in one dialect and collects the helper functions that they call.

    Examples
    --------
    >>> from polygrad.driver.render.dialect import CUDA, OPENCL
    >>> write = Expressions(OPENCL)
    >>> write.scalar("add", "float32", ("a", "b")), write.scalar("quotient", "int32", ("a", "b"))
    ('(a + b)', 'pg_quotient_int32(a, b)')
    >>> print(write.helpers().splitlines()[0])
    static inline int pg_quotient_int32(int a, int b) {
    >>> Expressions(CUDA).scalar("exp", "float32", ("a",))
    'expf(a)'
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._helpers: dict[str, str] = {}

    def helpers(self) -> str:
        """Return the helper functions that the expressions written so far call, in an order that compiles."""
        return "".join(self._helpers.values())

    def helper(self, name: str, text: Callable[[], str] | str) -> str:
        """Keep the helper function *name*, unless it is there already; return the name."""
        if name not in self._helpers:
            body = text if isinstance(text, str) else text()  # may itself ask for helpers, which then come first
            self._helpers[name] = body
        return name

    def instruction(self, instr: Instr, operands: Sequence[str], dtypes: Sequence[str], width: int = 1) -> str:
        """Return the value of a scalar op, cast, bitcast, where or const, given its operands' names and dtypes."""
        if instr.op == "const":
            return self.dialect.literal(instr.attr, instr.dtype, width)
        if instr.op == "cast":
            return self.cast(operands[0], dtypes[0], instr.dtype, width)
        if instr.op == "bitcast":
            return self.bitcast(operands[0], dtypes[0], instr.dtype, width)
        if instr.op == "where":
            return self.where(operands[0], operands[1], operands[2], instr.dtype, width)
        return self.scalar(instr.op, dtypes[0], operands, width)

    def shared_division(self, count: int) -> str:
        """Return the function that divides *count* float32 values by one: (divisor, values..., where they go...).

        With r = 1 / b correctly rounded and q = a * r, q + (a - q * b) * r is the correctly rounded quotient if nothing
        under- or overflows on the way (Markstein, IBM Journal of Research and Development 34, 1990). The compiler
        computes r once. Where something might, all values are divided in full: one branch for all of them leaves the
        compiler room to mix their arithmetic with loads.
        """
        each = range(count)
        arguments = ", ".join(["float b", *(f"float a{e}" for e in each), *(f"float* x{e}" for e in each)])
        quick = "".join(
            f"    {{ const float q = a{e} * r, m = fabs(a{e}); const bool tame = m >= 0x1p-96f && m <= 0x1p+96f;\n"
            f"      *x{e} = tame ? fma(fma(-q, b, a{e}), r, q) : q; odd |= !tame & (a{e} != 0.0f); }}\n"
            for e in each
        )
        full = " ".join(f"*x{e} = a{e} / b;" for e in each)
        text = (
            f"{self.dialect.function} void pg_shared_division_{count}({arguments}) {{\n"
            "#if defined(FP_FAST_FMAF) || defined(__CUDACC__)\n"
            "    const float r = 1.0f / b, d = fabs(b);\n    bool odd = !(d >= 0x1p-30f && d <= 0x1p+30f);\n"
            f"{quick}#else\n    const bool odd = true;\n#endif\n    if (odd) {{ {full} }}\n}}\n"
        )
        return self.helper(f"pg_shared_division_{count}", text)

    def where(self, condition: str, yes: str, no: str, dtype: str, width: int = 1) -> str:
        """Return *yes* where the bool *condition* holds, else *no*."""
        if width == 1:
            return f"({condition} ? {yes} : {no})"
        if dtype == "bool":
            return f"(({condition} & {yes}) | (~{condition} & {no}))"
        return f"({self.mask(condition, dtype, width)} ? {yes} : {no})"

    def mask(self, condition: str, dtype: str, width: int) -> str:
        """Return a vector bool (``int`` lanes of 0 and -1) with lanes as wide as *dtype*, as OpenCL's ?: demands."""
        lane = {1: "char", 2: "short", 4: "", 8: "long"}[ITEMSIZE[dtype]]
        return f"convert_{lane}{width}({condition})" if lane else f"({condition})"

    def _from_mask(self, comparison: str, dtype: str, width: int) -> str:
        """Return a comparison of *dtype* vectors as a vector bool."""
        return comparison if ITEMSIZE[dtype] == 4 else f"convert_int{width}({comparison})"  # noqa: PLR2004  bytes of int

    def scalar(self, op: str, dtype: str, operands: Sequence[str], width: int = 1) -> str:
        """Return the value of a row of SCALAR_OPS over operands of *dtype*."""
        if op not in SCALAR_OPS:
            raise ValueError(f"no scalar op is called {op!r}; the table is polygrad.driver.ir.SCALAR_OPS")
        form = Form(self.dialect, dtype, width)
        if dtype == "bool":
            return (_BOOLS if width == 1 else _MASKS)[op].format(*operands)
        if SCALAR_OPS[op].compares:
            comparison = f"({operands[0]} {_INFIX[op]} {operands[1]})"
            return comparison if width == 1 else self._from_mask(comparison, dtype, width)
        if kind(dtype) == "int":
            return self._integer(op, form, operands)
        return self._floating(op, form, operands)

    def reduce_step(self, how: str, dtype: str, a: str, b: str, width: int = 1) -> str:
        """Return two partial results of a reduction combined."""
        if how not in REDUCTIONS:
            raise ValueError(f"no reduction is called {how!r}; there are {', '.join(REDUCTIONS)}")
        if dtype == "bool":
            return self.scalar(
                {"sum": "maximum", "prod": "minimum", "max": "maximum", "min": "minimum"}[how], dtype, (a, b), width
            )
        return self.scalar(_REDUCING[how], dtype, (a, b), width)

    def identity(self, how: str, dtype: str, width: int = 1) -> str:
        """Return the literal from which a reduction starts.

        >>> from polygrad.driver.render.dialect import OPENCL
        >>> Expressions(OPENCL).identity("max", "int8"), Expressions(OPENCL).identity("sum", "float32")
        ('((char)(-128))', '0x0.0p+0f')
        """
        return self.dialect.literal(identity_of(how, dtype), dtype, width)

    def _integer(self, op: str, form: Form, operands: Sequence[str]) -> str:
        if op in _WRAPPING:
            a, b = (form.to_carrier(x) for x in operands)
            return form.from_carrier(f"{a} {_WRAPPING[op]} {b}")
        if op == "negative":
            zero = self.dialect.literal(0, form.carrier, form.width)
            return form.from_carrier(f"{zero} - {form.to_carrier(operands[0])}")
        if op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
            text = f"{operands[0]} {_INFIX[op]} {operands[1]}"
            return f"({form.type})({text})" if form.width == 1 else f"({text})"
        if op == "bitwise_invert":
            return f"(({form.type})(~{operands[0]}))" if form.width == 1 else f"(~{operands[0]})"
        if op == "absolute" and form.unsigned == form.dtype:
            return operands[0]
        name = self.helper(_helper_name(op, form), lambda: self._integer_helper(op, form))
        return f"{name}({', '.join(operands)})"

    def _integer_helper(self, op: str, form: Form) -> str:
        zero, signed = form.number(0), form.unsigned != form.dtype
        minus = form.from_carrier(f"{self.dialect.literal(0, form.carrier, form.width)} - {form.to_carrier('a')}")
        if op in ("maximum", "minimum"):
            return self._function(op, form, 2, f"return a {'>' if op == 'maximum' else '<'} b ? a : b;")
        if op == "absolute":
            return self._function(op, form, 1, f"return a < {zero} ? {minus} : a;")
        if op in ("quotient", "modulo"):
            return self._function(op, form, 2, self._division(op, form, minus, signed=signed))
        if op in ("bitwise_left_shift", "bitwise_right_shift"):
            return self._function(op, form, 2, self._shift(op, form, signed=signed))
        raise ValueError(f"{op} is not defined on {form.dtype}; verify.py should have refused the kernel")

    def _division(self, op: str, form: Form, minus: str, *, signed: bool) -> str:
        zero, one, least = form.number(0), form.number(1), form.number(-1)
        trap = f"(b == {zero}) | (b == {least})" if signed else f"b == {zero}"
        sign = "/" if op == "quotient" else "%"
        lines = f"{form.type} safe = ({trap}) ? {one} : b; {form.type} r = a {sign} safe;"
        if op == "modulo":
            return f"{lines} return ({trap}) ? {zero} : r;"
        if signed:
            lines += f" r = b == {least} ? {minus} : r;"
        return f"{lines} return b == {zero} ? {zero} : r;"

    def _shift(self, op: str, form: Form, *, signed: bool) -> str:
        bits = 8 * ITEMSIZE[form.dtype]
        count = Form(self.dialect, form.unsigned, form.width)
        as_count = self.dialect.bitcast("b", form.dtype, form.unsigned, form.width)
        if form.width == 1:
            as_count = self.dialect.convert("b", form.unsigned)
        lines = f"{count.type} n = {as_count}; {count.type} m = n & {count.number(bits - 1)};"
        if op == "bitwise_left_shift":
            moved = form.from_carrier(f"{form.to_carrier('a')} << m")
            return f"{lines} return n < {count.number(bits)} ? {moved} : {form.number(0)};"
        if not signed:
            return f"{lines} return n < {count.number(bits)} ? ({form.type})(a >> m) : {form.number(0)};"
        lines += f" m = n < {count.number(bits)} ? m : {count.number(bits - 1)};"
        return f"{lines} return a >> {self._as_signed('m', form)};"

    def _as_signed(self, text: str, form: Form) -> str:
        if form.width == 1:
            return self.dialect.convert(text, form.dtype)
        return self.dialect.bitcast(text, form.unsigned, form.dtype, form.width)

    def _floating(self, op: str, form: Form, operands: Sequence[str]) -> str:
        if op in _ARITHMETIC:
            return f"({operands[0]} {_ARITHMETIC[op]} {operands[1]})"
        if op == "negative":
            return f"(-{operands[0]})"
        if op == "rsqrt" and self.dialect.name == "c99":
            return f"({form.number(1.0)} / {self.dialect.math('sqrt', form.dtype)}({operands[0]}))"
        if op in ("maximum", "minimum"):
            name = self.helper(_helper_name(op, form), lambda: self._extremum(op, form))
        elif form.width > 1 and form.dtype == "float32" and op in vector_functions.NAMES:
            name = self.helper(_helper_name(op, form), lambda: self._inline(op, form))
        elif form.width > 1 and op in _LANEWISE:
            name = self.helper(_helper_name(op, form), lambda: self._lane_by_lane(op, form))
        else:
            name = self.dialect.math(op, form.dtype)
        return f"{name}({', '.join(operands)})"

    def _extremum(self, op: str, form: Form) -> str:
        sign = ">" if op == "maximum" else "<"
        text = f"return ((a {sign} b) | (a != a)) ? a : b;"
        if self.dialect.name == "cuda" and form.dtype == "float32":
            instruction = "max.NaN.f32" if op == "maximum" else "min.NaN.f32"
            text = (
                "\n#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800\n"
                f'    float r; asm("{instruction} %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r;\n'
                f"#else\n    {text}\n#endif"
            )
        return self._function(op, form, 2, text)

    def _inline(self, op: str, form: Form) -> str:
        if op in vector_functions.CALLS_EXP:
            self.scalar("exp", form.dtype, ("a",), form.width)  # so that it stands before
        return self._function(op, form, 1, vector_functions.body(op, form.width))

    def load(self, pointer: str, dtype: str, width: int, space: str) -> str:
        """Return the vector at *pointer*, a parenthesis on elements of *dtype* in an address space of OpenCL."""
        name = self.helper(*_unaligned(self.dialect.memory(dtype), width))
        return f"{name}_load({space.strip()}, {pointer})"

    def store(self, text: str, pointer: str, dtype: str, width: int, space: str) -> str:
        """Return the statement that puts the vector *text* at *pointer*; as `load`."""
        name = self.helper(*_unaligned(self.dialect.memory(dtype), width))
        return f"{name}_store({space.strip()}, {text}, {pointer});"

    def stream(self, text: str, pointer: str, dtype: str, width: int, space: str) -> str:
        """Return the statement that puts the vector *text* at *pointer* and not into the cache; as `load`."""
        memory = self.dialect.memory(dtype, width)
        halves = [("v.lo", "p"), ("v.hi", f"p + {width // 2}")]
        plain = " ".join([self.store(v, p, dtype, width // 2, space) for v, p in halves])
        name = f"pg_{memory}_stream"
        self.helper(name, lambda: _streaming(name, memory, self.dialect.types[dtype], space.strip(), plain))
        return f"{name}({text}, {pointer});"

    def _lane_by_lane(self, op: str, form: Form) -> str:
        arity = SCALAR_OPS[op].arity
        calls = [f"{op}({', '.join(f'{x}.s{lane:x}' for x in 'ab'[:arity])})" for lane in range(form.width)]
        return self._function(op, form, arity, f"return ({form.type})({', '.join(calls)});")

    def _function(self, op: str, form: Form, arity: int, body: str) -> str:
        parameters = ", ".join(f"{form.type} {name}" for name in "ab"[:arity])
        return f"{self.dialect.function} {form.type} {_helper_name(op, form)}({parameters}) {{\n    {body}\n}}\n"

    def cast(self, value: str, source: str, target: str, width: int = 1) -> str:
        """Return *value* in another dtype; see ``cast`` in the table of `Instr`."""
        if source == target:
            return value
        if target == "bool":
            return self._to_bool(value, source, width)
        if source == "bool":
            one, zero = self.dialect.literal(1, target, width), self.dialect.literal(0, target, width)
            return self.where(value, one, zero, target, width)
        if "float16" in target:
            return self._to_storage(value, source, target, width)
        if "float16" in source:
            return self.cast(self._from_storage(value, source, width), "float32", target, width)
        if kind(source) == "float" and kind(target) == "int":
            value = self._in_range(value, source, target, width)
        return self.dialect.convert(value, target, width)

    def _to_bool(self, value: str, source: str, width: int) -> str:
        if "float16" in source:  # any bit but the sign
            value, source = f"({value} & {self.dialect.literal(0x7FFF, 'uint16', width)})", "uint16"
        comparison = f"({value} != {self.dialect.literal(0, source, width)})"
        return comparison if width == 1 else self._from_mask(comparison, source, width)

    def _in_range(self, value: str, source: str, target: str, width: int) -> str:
        """Return *value*, or 0 where its truncation does not fit *target*: C leaves that conversion undefined."""
        bits = 8 * ITEMSIZE[target] - (target in UNSIGNED)
        low = -float(1 << bits) if target in UNSIGNED else 0.0
        digits = 53 if source == "float64" else 24
        # One below the least value truncates up to it; where it is not representable, nothing between is either.
        strict = bits < digits
        above = (
            f"> {self.dialect.literal(low - 1.0, source, width)}"
            if strict or not low
            else f">= {self.dialect.literal(low, source, width)}"
        )
        below = f"< {self.dialect.literal(float(1 << bits), source, width)}"
        fits = f"({value} {above}) & ({value} {below})"
        return f"(({fits}) ? {value} : {self.dialect.literal(0.0, source, width)})"

    def _from_storage(self, value: str, source: str, width: int) -> str:
        """Return the bits of a 16-bit float as a float32."""
        form = Form(self.dialect, "uint32", width)
        name = f"pg_from_{source}" + (f"x{width}" if width > 1 else "")
        self.helper(name, lambda: self._from_storage_helper(name, source, form))
        return f"{name}({value})"

    def _from_storage_helper(self, name: str, source: str, form: Form) -> str:
        result = self.dialect.register("float32", form.width)
        head = f"{self.dialect.function} {result} {name}({self.dialect.register(source, form.width)} h) {{\n"
        if self.dialect.name == "cuda" and source == "float16":
            return head + '    float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h)); return r;\n}\n'
        bits = self.dialect.convert("h", "uint32", form.width)
        if source == "bfloat16":
            return head + f"    return {self._float(f'{bits} << {form.number(16)}', form)};\n}}\n"
        n = form.number
        tiny = self._float(f"m + {n(0x38800000)}", form) + " - " + self._float(n(0x38800000), form)
        tiny_bits = self.dialect.bitcast("small", "float32", "uint32", form.width)
        return head + (
            f"    {form.type} w = {bits}; {form.type} m = (w & {n(0x7FFF)}) << {n(13)};\n"
            f"    {form.type} s = (w & {n(0x8000)}) << {n(16)};\n"
            f"    {form.type} large = m + (m >= {n(0x0F800000)} ? {n(0x70000000)} : {n(0x38000000)});\n"
            f"    {result} small = {tiny}; {form.type} tiny = {tiny_bits};\n"
            f"    return {self._float(f'(m < {n(0x00800000)} ? tiny : large) | s', form)};\n}}\n"
        )

    def _float(self, text: str, form: Form) -> str:
        return self.dialect.bitcast(text, "uint32", "float32", form.width)

    def _to_storage(self, value: str, source: str, target: str, width: int) -> str:
        """Return a number as the bits of a 16-bit float, rounded once, ties to even."""
        if "float16" in source:
            value, source = self._from_storage(value, source, width), "float32"
        suffix = f"x{width}" if width > 1 else ""
        if source == "float64":
            odd = self.helper(f"pg_to_odd{suffix}", lambda: self._odd_helper(f"pg_to_odd{suffix}", width))
            value = f"{odd}({value})"
        elif target == "bfloat16" and kind(source) == "int" and ITEMSIZE[source] >= 4:  # noqa: PLR2004  float32 itself would round
            value = self._magnitude_to_odd(value, source, width)
        elif source != "float32":
            value = self.dialect.convert(value, "float32", width)
        name = f"pg_to_{target}{suffix}"
        self.helper(name, lambda: self._to_storage_helper(name, target, Form(self.dialect, "uint32", width)))
        return f"{name}({value})"

    def _to_storage_helper(self, name: str, target: str, form: Form) -> str:
        number, result = self.dialect.register("float32", form.width), self.dialect.register(target, form.width)
        head = f"{self.dialect.function} {result} {name}({number} a) {{\n"
        if self.dialect.name == "cuda" and target == "float16":
            return head + '    unsigned short r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(a)); return r;\n}\n'
        n = form.number
        word = self.dialect.bitcast("a", "float32", "uint32", form.width)
        narrow = self.dialect.convert("r", "uint16", form.width)
        lines = f"    {form.type} w = {word}; {form.type} m = w & {n(0x7FFFFFFF)};\n"
        nan = f"m > {n(0x7F800000)}"
        if target == "bfloat16":
            near = f"(w + {n(0x7FFF)} + ((w >> {n(16)}) & {n(1)})) >> {n(16)}"
            lines += f"    {form.type} r = {nan} ? (w >> {n(16)}) | {n(0x40)} : {near};\n    return {narrow};\n"
            if self.dialect.name == "cuda":
                one = '    unsigned short h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(a)); return h;\n'
                lines = f"#if __CUDA_ARCH__ >= 800\n{one}#else\n{lines}#endif\n"
            return f"{head}{lines}}}\n"
        lines += f"    {form.type} s = (w >> {n(16)}) & {n(0x8000)};\n"
        tiny = f"{self._float('m', form)} + {self._float(n(0x3F000000), form)}"
        tiny_bits = self.dialect.bitcast("sum", "float32", "uint32", form.width)
        return head + lines + (
            f"    {number} sum = {tiny}; {form.type} tiny = {tiny_bits} - {n(0x3F000000)};\n"
            f"    {form.type} r = (m + {n(0xC8000FFF)} + ((m >> {n(13)}) & {n(1)})) >> {n(13)};\n"
            f"    r = m < {n(0x38800000)} ? tiny : r; r = m >= {n(0x47800000)} ? {n(0x7C00)} : r;\n"
            f"    r = {nan} ? {n(0x7E00)} : r; r = r | s;\n    return {narrow};\n}}\n"
        )  # fmt: skip

    def _odd_helper(self, name: str, width: int) -> str:
        """Round double to float, setting the last bit of an inexact result: a second rounding is then the only one."""
        form = Form(self.dialect, "uint32", width)
        double, single = self.dialect.register("float64", width), self.dialect.register("float32", width)
        wide = self.dialect.convert("f", "float64", width)
        inexact, beyond = f"({wide} != a) & (a == a)", f"fabs({wide}) > fabs(a)"
        if width > 1:
            inexact, beyond = f"convert_int{width}({inexact})", f"convert_int{width}({beyond})"
        one = form.number(1)
        word = self.dialect.bitcast("f", "float32", "uint32", width)
        return (
            f"{self.dialect.function} {single} {name}({double} a) {{\n"
            f"    {single} f = {self.dialect.convert('a', 'float32', width)}; {form.type} w = {word};\n"
            f"    {form.type} even = (w & {one}) ^ {one}; {form.type} up = w + even; {form.type} down = w - even;\n"
            f"    {form.type} r = ({inexact}) ? (({beyond}) ? down : up) : w;\n"
            f"    return {self._float('r', form)};\n}}\n"
        )

    def _magnitude_to_odd(self, value: str, source: str, width: int) -> str:
        """Round a wide integer to float32 such that rounding once more to bfloat16 is as good as rounding once."""
        form = Form(self.dialect, UNSIGNED.get(source, source), width)
        name = f"pg_{form.dtype}_to_odd" + (f"x{width}" if width > 1 else "")
        self.helper(name, lambda: self._integer_odd_helper(name, form))
        if source == form.dtype:
            return f"{name}({value})"
        # By unsigned arithmetic: compilers take it that an absolute value is not negative, and the least integer's is.
        absolute = f"pg_{form.dtype}_magnitude" + (f"x{width}" if width > 1 else "")
        self.helper(absolute, lambda: self._magnitude_helper(absolute, form))
        size = f"{name}({absolute}({self.cast(value, source, form.dtype, width)}))"
        return f"{self.dialect.math('copysign', 'float32')}({size}, {self.dialect.convert(value, 'float32', width)})"

    def _magnitude_helper(self, name: str, form: Form) -> str:
        """Return the absolute value of a signed integer, given and returned as the unsigned one of its bits."""
        n = form.number
        sign = f"a >> {n(8 * ITEMSIZE[form.dtype] - 1)}"
        return (
            f"{self.dialect.function} {form.type} {name}({form.type} a) {{\n"
            f"    {form.type} s = {sign}; return (a ^ ({n(0)} - s)) + s;\n}}\n"
        )

    def _integer_odd_helper(self, name: str, form: Form) -> str:
        n, width, dialect = form.number, form.width, self.dialect
        single = dialect.register("float32", width)
        word = dialect.convert(dialect.bitcast("f", "float32", "uint32", width), form.dtype, width)
        scale = dialect.convert(f"(shift + {n(127)}) << {n(23)}", "uint32", width)
        return (
            f"{dialect.function} {single} {name}({form.type} a) {{\n"
            f"    {single} f = {dialect.convert('a', 'float32', width)}; {form.type} e = {word} >> {n(23)};\n"
            f"    {form.type} shift = e > {n(150)} ? e - {n(150)} : {n(0)};\n"
            f"    {form.type} rest = a & (({n(1)} << shift) - {n(1)});\n"
            f"    {form.type} top = (a >> shift) | (rest != {n(0)} ? {n(1)} : {n(0)});\n"
            f"    return {dialect.convert('top', 'float32', width)}"
            f" * {dialect.bitcast(scale, 'uint32', 'float32', width)};\n}}\n"
        )

    def bitcast(self, value: str, source: str, target: str, width: int = 1) -> str:
        """Return the bits of *value* as another dtype of its size."""
        if source == target:
            return value
        if target == "bool":
            return self.cast(
                value if source == "uint8" else self.bitcast(value, source, "uint8", width), "uint8", "bool", width
            )
        if source == "bool":
            return self.cast(value, "bool", target, width)
        return self.dialect.bitcast(value, source, target, width)


def identity_of(how: str, dtype: str) -> bool | int | float:
    """Return the neutral element of a reduction.

    >>> identity_of("min", "uint8"), identity_of("max", "float32"), identity_of("prod", "int32")
    (255, -inf, 1)
    """
    if how in ("sum", "prod"):
        return 0 if how == "sum" else 1
    if dtype == "bool":
        return how == "min"
    if kind(dtype) == "float":
        return float("-inf") if how == "max" else float("inf")
    bits = 8 * ITEMSIZE[dtype]
    signed = dtype in UNSIGNED
    if how == "max":
        return -(1 << (bits - 1)) if signed else 0
    return (1 << (bits - signed)) - 1


def _helper_name(op: str, form: Form) -> str:
    return f"pg_{op}_{form.dtype}" + (f"x{form.width}" if form.width > 1 else "")
