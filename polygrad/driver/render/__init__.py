"""The shared renderer of fused kernels to C-like text, for drivers whose device has a compiler.

Here: what a driver author imports: the dialects, the scalar expressions, the two styles of a kernel.
Not here: compilers, queues and memory, which belong to a driver.

    dialect.py       one table a language: OpenCL C, CUDA C++, C99
    expressions.py   instructions as text with the semantics of `ir.py`; addresses, windows, gathers
    collapse.py      fewer and better ordered axes for the same kernel
    gpu_style.py     a kernel for a GPU: many work-items, vectors of 16 bytes, rows in registers
    cpu_style.py     a kernel for a CPU device of OpenCL: a chunk a work-item, wide vectors
"""
