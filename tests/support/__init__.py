"""What several test files share: one module a subject. Not here: tests, and fixtures, which `conftest.py` has."""
