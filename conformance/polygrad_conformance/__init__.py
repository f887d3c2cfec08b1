"""The conformance suite: whether a driver does what the fused IR and the hook specifications say, and the proof.

Here: tests, generators, error models and reports for any driver. Not here: the name of any driver.
"""
