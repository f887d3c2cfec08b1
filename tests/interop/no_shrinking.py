"""A pytest plugin for array-api-tests: a failing test reports its first example at once, without Hypothesis' shrinking.

Here: that one setting; an example that fails may otherwise be shrunk for minutes.
Not here: which examples are drawn.
"""

import pytest
from hypothesis import Phase, settings
from hypothesis.errors import InvalidArgument


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take the suite's own profile, without the phases that follow a failure."""
    try:
        profile = settings.get_profile("array-api-tests")
    except InvalidArgument:
        return
    settings.register_profile("without shrinking", parent=profile, phases=(Phase.explicit, Phase.reuse, Phase.generate))
    settings.load_profile("without shrinking")
