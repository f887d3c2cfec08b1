"""Run the test suites that Array API clients ship in their wheels on polygrad: python tests/interop/suites.py [NAME ...]

Here: which suites, which of their tests, and how many passed when this was written, with SciPy 1.17, scikit-learn 1.9
and array-api-extra 0.11: fewer is a failure. For comparison, array_api_strict itself passes 483 of scipy.stats, 87 of
scipy.signal and 180 of scipy.cluster. What fails of ours asks for array_api_strict by name (Namespace of the result,
NumPy fallbacks that our __array_ufunc__ makes unnecessary), or for C-level buffers, which a class has from Python 3.12.
Not here: the substitution that makes the suites take our namespace (`offer.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Suite(NamedTuple):
    """One client's tests: what to collect, under which substitution, and how many must pass."""

    name: str
    offer: str
    arguments: tuple[str, ...]
    floor: int
    environment: tuple[tuple[str, str], ...] = ()


STRICT = (("SCIPY_ARRAY_API", '["array_api_strict"]'),)
SCIPY = ("-m", "array_api_backends", "--pyargs")

SUITES = (
    Suite("array-api-extra", "extra", ("-k", "polygrad or POLYGRAD", "--pyargs", "array_api_extra.tests.main"), 1200),
    Suite("scipy.fft", "scipy", (*SCIPY, "scipy.fft"), 3184, STRICT),
    Suite("scipy.special", "scipy", (*SCIPY, "scipy.special.tests.test_logsumexp", "scipy.special.tests.test_support_alternative_backends"), 1875, STRICT),
    Suite("scipy.cluster", "scipy", (*SCIPY, "scipy.cluster"), 181, STRICT),
    Suite("scipy.spatial.transform", "scipy", (*SCIPY, "scipy.spatial.transform"), 370, STRICT),
    Suite("scipy.integrate", "scipy", (*SCIPY, "scipy.integrate.tests.test_quadrature", "scipy.integrate.tests.test_cubature"), 517, STRICT),
    Suite("scipy.signal", "scipy", (*SCIPY, "scipy.signal.tests.test_windows"), 91, STRICT),
    Suite("scipy.stats", "scipy", (*SCIPY, "scipy.stats.tests.test_entropy", "scipy.stats.tests.test_variation", "scipy.stats.tests.test_correlation", "scipy.stats.tests.test_quantile"), 492, STRICT),
    Suite("sklearn.decomposition", "sklearn", ("-k", "array_api", "--pyargs", "sklearn.decomposition.tests.test_pca", "sklearn.tests.test_discriminant_analysis", "sklearn.tests.test_naive_bayes"), 35),
    Suite("sklearn.linear_model", "sklearn", ("-k", "array_api", "--pyargs", "sklearn.linear_model"), 88),
    Suite("sklearn.metrics", "sklearn", ("-k", "array_api", "--pyargs", "sklearn.metrics"), 262),
    Suite("sklearn.others", "sklearn", ("-k", "array_api", "--pyargs", "sklearn.preprocessing", "sklearn.model_selection", "sklearn.mixture", "sklearn.utils"), 530),
    Suite("xarray", "scipy", ("--pyargs", "xarray.tests.test_array_api"), 13),
    Suite("array-api-compat", "compat", ("-k", "array_api_strict", "--pyargs", "array_api_compat.tests"), 46)  # and one more for each peer that is installed,
)  # fmt: skip


def run(suite: Suite, extra: list[str]) -> tuple[int, int, list[str], float]:
    """Return how many tests of *suite* passed and failed, which failed, and the seconds of CPU time."""
    environment = {
        **os.environ,
        "OFFER_TO": suite.offer,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        "SCIPY_ARRAY_API": "1",
    }
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environment.update(suite.environment)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "offer", "-p", "no:cacheprovider", "--tb=line", "-rfE"]
    before = os.times()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, *suite.arguments, *extra],
            cwd=folder,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-300:]]
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|errors?)", last[0])}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+.*)$", done.stdout, flags=re.MULTILINE)
    bad = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    return counts.get("passed", 0), bad, failed or last, seconds


def main(arguments: list[str]) -> int:
    """Run the suites whose names contain one of *arguments*; options, such as -n2, go to pytest. Return the exit status."""
    extra = [a for a in arguments if a.startswith("-")]
    names = [a for a in arguments if not a.startswith("-")]
    chosen = [s for s in SUITES if not names or any(n in s.name for n in names)]
    worse = []
    for suite in chosen:
        passed, bad, failed, seconds = run(suite, extra)
        print(
            f"{suite.name:26} {passed:5} passed {bad:4} failed (floor {suite.floor:5}) {seconds:6.0f} s of CPU time",
            flush=True,
        )
        for line in failed[: 200 if bad or passed < suite.floor else 0]:
            print("    " + line[:230])
        if passed < suite.floor:
            worse.append(suite.name)
    if worse:
        print(f"below their floors: {', '.join(worse)}")
    return 1 if worse or not chosen else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
