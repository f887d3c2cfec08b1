"""Huge pages under large buffers of CPU devices, as the system tells of them.

Here: what `pages.ask` did. Not here: what it gains.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from polygrad_opencl import pages


def flags_at(address):
    """The flags of the mapping of this process that holds an address, from /proc: "hg" is for huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first:
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= address < high
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    return []


@pytest.mark.parametrize("nbytes", [pages.LEAST // 2, pages.LEAST, 3 * pages.LEAST + 5])
def test_large_buffers_of_a_cpu_device_lie_on_huge_pages(session, nbytes):
    if sys.platform != "linux" or not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("not run: needs Linux with huge pages")
    if session.kind != "cpu" or not session.unified or session.simulated:
        pytest.skip("not run: needs a CPU device")
    cl = session.cl
    buffer = cl.Buffer(session.context, cl.mem_flags.READ_WRITE, nbytes)
    pages.ask(session, buffer, nbytes)
    values = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
    cl.enqueue_copy(session.queue, buffer, values)
    mapped, _ = cl.enqueue_map_buffer(session.queue, buffer, cl.map_flags.READ, 0, (nbytes,), np.uint8)
    flags = flags_at(mapped.ctypes.data + nbytes // 2)
    np.testing.assert_array_equal(mapped, values)
    mapped.base.release(session.queue)
    session.queue.finish()
    if nbytes >= pages.LEAST:
        assert "hg" in flags
