"""The project's own benchmark: the same work side by side on polygrad's devices and on other libraries.

Here: nothing; `polygrad bench` (`polygrad/cli/bench.py`) is the way in. Read in this order: `work.py` (what is
measured), `peers/` and `foreign/` (how each library does it), `worker.py` (one library in one process), `rounds.py`
(who is measured when), `judging.py` (who computed the same, and who won), `tables.py` and `picture.py` (how it is
shown).
Not here: benchmarks of single parts of polygrad (the scripts in `benchmarks/`), any assertion about a time.
"""
