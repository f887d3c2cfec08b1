"""The shared renderer of fused kernels to C-like text, for drivers whose device has a compiler.

Here: what a driver author imports. Not here: compilers, queues and memory, which belong to a driver.

    dialect.py       one table a language: OpenCL C, CUDA C++, C99
    expressions.py   instructions as text with the semantics of `ir.py`
    addressing.py    views, windows, gathers as text; the arguments of a rendered kernel
    collapse.py      fewer and better ordered axes for the same kernel
    gpu_style.py     a kernel for a GPU: many work-items, vectors of 16 bytes, rows in registers; its docstring says how
                     to use it, gpu_choice.py decides the form of a kernel, the other gpu_ modules write it
    cpu_style.py     a kernel for a CPU device of OpenCL: a chunk a work-item, wide vectors; cpu_plan.py decides its
                     form, the other cpu_ modules write it, with functions of vectors from vector_functions.py

A driver for a new language writes a `Dialect`; one with a strategy of its own writes a body over `Expressions` and
`Addressing`.
"""

from polygrad.driver.render.addressing import Addressing, Argument
from polygrad.driver.render.collapse import collapse
from polygrad.driver.render.dialect import C99, CUDA, OPENCL, Dialect, argument_dtype, argument_value
from polygrad.driver.render.expressions import Expressions
from polygrad.driver.render.gpu_style import Choice, Geometry, GpuLimits, Source, choose_gpu, possible, render_gpu

__all__ = [
    "C99",
    "CUDA",
    "OPENCL",
    "Addressing",
    "Argument",
    "Choice",
    "Dialect",
    "Expressions",
    "Geometry",
    "GpuLimits",
    "Source",
    "argument_dtype",
    "argument_value",
    "choose_gpu",
    "collapse",
    "possible",
    "render_gpu",
]
