"""What several of the cpu driver's tests share: a driver of their own.

Here: the fixture `driver`, an open instance that no plugin knows, so that `cpu:0` stays what it is for other tests.
Not here: tests.
"""

import pytest

from polygrad_cpu.driver import CpuDriver


@pytest.fixture
def driver():
    opened = CpuDriver()
    opened.info_of = opened.open(0, {"threads": "2"})
    yield opened
    opened.close()
