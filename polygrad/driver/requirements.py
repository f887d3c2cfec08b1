"""What a driver asks the conformance suite to make of it: lacks, known faults and tolerances, each with its reason.

Here: `Requirements` and `ExpectedFailure`, plain data that `polygrad_requirements` returns.
Not here: how the suite applies them.

Capabilities (dtypes, ops, features) are declared in `DeviceInfo` alone; what is said here is about single tests. Keys
are ids of tests, or patterns of them as `fnmatch` reads them.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ExpectedFailure:
    """A known fault: what is wrong, where it is tracked, and the day from which it counts as a failure again.

    >>> ExpectedFailure("3.9 ULP over below 2**-100", issue="https://example.org/7", until="2031-01-31").until
    '2031-01-31'
    """

    reason: str
    issue: str
    until: str  # YYYY-MM-DD

    def __post_init__(self) -> None:
        if not self.reason or not self.issue:
            raise ValueError(
                "an expected failure needs a reason and an issue; say what is wrong and where it is tracked"
            )
        try:
            dt.date.fromisoformat(self.until)
        except ValueError:
            raise ValueError(f"until must be a date such as '2031-01-31', not {self.until!r}") from None


@dataclass(frozen=True)
class Requirements:
    """What the suite may expect of one device.

    Attributes
    ----------
    unsupported : mapping of pattern to str
        Tests that do not apply, for good, and why.
    expected_failure : mapping of pattern to ExpectedFailure
        Tests that fail today. Not allowed below level 4, nor for tests of random kernels.
    tolerance : mapping of str to float
        ULP of an op and dtype, such as ``{"exp.float32": 3.0}``: at most the suite's own ceiling, for devices that
        promise more than it asks.

    Examples
    --------
    >>> Requirements(unsupported={"L8.memory.over_limit": "the device has no limit of its own"}).tolerance
    {}
    """

    unsupported: Mapping[str, str] = field(default_factory=dict)
    expected_failure: Mapping[str, ExpectedFailure] = field(default_factory=dict)
    tolerance: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(self.unsupported.values()):
            raise ValueError("an unsupported test needs a reason; write {pattern: 'why it cannot apply'}")
