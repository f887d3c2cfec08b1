"""The folders of compiled kernels: bounded, shared by processes, never torn.

Here: `polygrad.driver.caches`. Not here: what drivers put in them.
"""

import os
import subprocess
import sys
import time

import pytest

import polygrad.driver.caches as caches
from polygrad.driver import DriverUnavailable
from polygrad.driver.caches import ProgramCache, cache_limit, key_of


def held(folder):
    return sum(p.stat().st_size for p in folder.iterdir())


def aged(cache, key, seconds):
    """Make an entry as if it had been used last so many seconds ago."""
    then = time.time() - seconds
    os.utime(cache.path(key), (then, then))


def test_a_folder_keeps_to_its_limit_and_what_was_used_last_stays(tmp_path):
    cache = ProgramCache(tmp_path, limit=10_000)
    for n in range(9):
        cache.store(f"k{n}", bytes(1000))
        aged(cache, f"k{n}", 100 - n)
    assert cache.load("k0") is not None  # the oldest, used again
    cache.store("k9", bytes(1000))
    assert held(tmp_path) <= 10_000
    assert cache.load("k0") is not None
    assert cache.load("k9") is not None
    assert cache.load("k1") is None


def test_a_folder_that_was_too_big_shrinks_at_the_first_write_of_a_process(tmp_path):
    big = ProgramCache(tmp_path, limit=1 << 30)
    for n in range(50):
        big.store(f"old{n}", bytes(1000))
        aged(big, f"old{n}", 50)
    ProgramCache(tmp_path, limit=10_000).store("new", b"code")
    assert held(tmp_path) <= 10_000 * caches.KEPT
    assert ProgramCache(tmp_path, limit=10_000).load("new") == b"code"


def test_a_folder_is_not_looked_at_for_every_write(tmp_path, monkeypatch):
    looks = []
    trim = ProgramCache.trim
    monkeypatch.setattr(ProgramCache, "trim", lambda self: looks.append(1) or trim(self))
    cache = ProgramCache(tmp_path, limit=1_000_000)
    for n in range(100):
        cache.store(f"k{n}", bytes(100))
    assert len(looks) == 1


def test_unfinished_files_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path):
    cache = ProgramCache(tmp_path, limit=10_000)
    for name, age in (("dead.part", 2 * caches.ABANDONED), ("living.part", 1)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    cache.trim()
    assert [p.name for p in tmp_path.iterdir()] == ["living.part"]


def test_a_damaged_entry_is_a_miss(tmp_path):
    cache = ProgramCache(tmp_path / "new", limit=10_000)
    cache.store("key", b"binary")
    assert cache.load("key") == b"binary"
    for damaged in (b"", b"short", cache.path("key").read_bytes()[:-1]):
        cache.path("key").write_bytes(damaged)
        assert cache.load("key") is None
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["key.bin"]


def test_entries_that_their_owner_writes_are_bounded_too(tmp_path):
    cache = ProgramCache(tmp_path, limit=4 * caches.TYPICAL)
    for n in range(20):
        path = cache.path(f"k{n}", ".so")
        assert not cache.claim(path)
        path.write_bytes(bytes(caches.TYPICAL))
        os.utime(path, (time.time() - 100 + n,) * 2)
        assert cache.claim(path)
        assert held(tmp_path) <= 5 * caches.TYPICAL
    assert path.exists()


def test_a_limit_of_zero_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYGRAD_CACHE_LIMIT", "0")
    cache = ProgramCache(tmp_path / "new")
    cache.store("key", b"binary")
    assert cache.load("key") is None
    assert not (tmp_path / "new").exists()


def test_the_limit_is_in_mebibytes_and_256_by_itself(monkeypatch):
    monkeypatch.setenv("POLYGRAD_CACHE_LIMIT", "1.5")
    assert cache_limit() == 1.5 * 2**20
    monkeypatch.delenv("POLYGRAD_CACHE_LIMIT")
    assert cache_limit() == 256 * 2**20


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setenv("POLYGRAD_CACHE_LIMIT", text)
    with pytest.raises(DriverUnavailable) as refused:
        cache_limit()
    assert str(refused.value) == (
        f"POLYGRAD_CACHE_LIMIT is {text!r}; give a number of MiB of compiled kernels, such as 256, or 0"
    )


def test_a_folder_that_cannot_be_written_to_is_an_empty_cache(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = ProgramCache(tmp_path / "file", limit=10_000)
    cache.store("key", b"binary")
    assert cache.load("key") is None
    assert not cache.claim(cache.path("key"))


HAMMER = """
import pathlib, random, sys
from polygrad.driver.caches import ProgramCache
cache, rng = ProgramCache(pathlib.Path(sys.argv[1]), limit=100_000), random.Random(int(sys.argv[2]))
hits = 0
for _ in range(400):
    key = str(rng.randrange(300))
    found = cache.load(key)
    if found is None:
        cache.store(key, key.encode() * 500)
    else:
        assert found == key.encode() * 500, key
        hits += 1
print(hits)
"""


def test_processes_that_share_a_folder_see_whole_entries_and_keep_to_the_limit(tmp_path):
    started = [
        subprocess.Popen([sys.executable, "-c", HAMMER, str(tmp_path), str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    hits = [int(process.communicate(timeout=120)[0]) for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert sum(hits) > 0
    assert held(tmp_path) <= 100_000 * (1 + 4 / 8)  # each may write an eighth before it looks again
    assert not list(tmp_path.glob("*.part"))


def test_keys_tell_parts_apart():
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("abc", "")}) == 4
