"""The conformance suite: whether a driver does what the fused IR and the hook specifications say, and the proof.

Here: tests, generators, error models and reports for any driver; start with `checks.py`, `bench.py` and a level.
Not here: the name of any driver.

``python -m polygrad conformance DEVICE`` runs it; so does ``pytest --pyargs polygrad_conformance --device=DEVICE``.
"""

VERSION = "2026.11"  # of the suite: year and month in which its list of tests last changed
