"""Fourier transforms through cuFFT, which CuPy calls and whose plans it caches.

Here: the ops fft, rfft, irfft, along the last axis and without a factor. Not here: any transform.

CuPy's norm "backward" puts the factor on inverse transforms and "forward" on the others: each is asked for where it
puts none.
"""

from typing import TYPE_CHECKING

from polygrad.driver import Ref
from polygrad_cuda.library_arrays import as_array, library_calls, put

if TYPE_CHECKING:
    from polygrad_cuda.driver import CudaDriver


def fft(driver: "CudaDriver", out: Ref, x: Ref, inverse: bool) -> None:
    """Transform complex numbers."""
    with library_calls(driver, "transforming") as cupy:
        values = as_array(driver, x, numbers=True)
        found = cupy.fft.ifft(values, norm="forward") if inverse else cupy.fft.fft(values)
        put(driver, out, found, numbers=True)


def rfft(driver: "CudaDriver", out: Ref, x: Ref) -> None:
    """Transform real numbers into half a spectrum."""
    with library_calls(driver, "transforming") as cupy:
        values = as_array(driver, x)
        if values.data.ptr % (2 * values.itemsize):  # cuFFT reads real numbers in pairs
            values = values.copy()
        put(driver, out, cupy.fft.rfft(values), numbers=True)


def irfft(driver: "CudaDriver", out: Ref, x: Ref, n: int) -> None:
    """Transform half a spectrum into n real numbers."""
    with library_calls(driver, "transforming") as cupy:
        found = cupy.fft.irfft(as_array(driver, x, numbers=True), n, norm="forward")
        put(driver, out, found)
