"""Data sets, loaders, workers, files of tokens.

Here: orders, places in them, shares, failures. Not here: training.
"""

import collections
import gc
import math
import operator
import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import zlib

import numpy as np
import pytest

import polygrad as pg
from polygrad.data.order import Plan

D = pg.data


class Squares(D.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, k):
        return {"x": np.float32([k, k * k]), "k": k, "name": f"n{k}"}


class Stream(D.IterableDataset):
    def __iter__(self):
        return iter(range(11))


def numbers(n=10):
    return D.TensorDataset(np.arange(n))


def seen(loader):
    return [b[0].tolist() for b in loader]


def test_batches_of_trees_come_on_the_device(device):
    batches = list(D.DataLoader(Squares(), batch_size=4, device=device))
    assert [b["k"].tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches[1]["x"].tolist() == [[4.0, 16.0], [5.0, 25.0], [6.0, 36.0], [7.0, 49.0]]
    assert (batches[0]["x"].dtype, batches[0]["x"].device) == (pg.float32, device)
    assert batches[2]["name"] == ["n8", "n9"]


def test_arrays_on_a_device_are_taken_there(device):
    x = pg.arange(12, device=device).reshape(6, 2)
    loader = D.DataLoader(D.TensorDataset(x, x[:, 0]), batch_size=4, shuffle=True, seed=1)
    rows = [(b[0].device, b[0].tolist(), b[1].tolist()) for b in loader]
    assert {d for d, _, _ in rows} == {device}
    assert sorted(r for _, xs, _ in rows for r in xs) == x.tolist()
    assert all(r[0] == y for _, xs, ys in rows for r, y in zip(xs, ys, strict=True))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 64, 1000])
def test_a_permutation_has_every_element_once(n):
    orders = [list(D.Permutation(n, key)) for key in range(3)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    assert n < 10 or len({tuple(order) for order in orders}) == 3


def test_permutations_are_spread_evenly():
    n, keys = 5, 4000
    counts = collections.Counter((at, D.Permutation(n, key)[at]) for key in range(keys) for at in range(n))
    expected = keys / n
    surprise = sum((counts[a, b] - expected) ** 2 / expected for a in range(n) for b in range(n))
    assert surprise < 45  # chi square with 16 degrees of freedom: one in 7000 is above 45
    orders = collections.Counter(tuple(D.Permutation(4, key)) for key in range(4800))
    assert len(orders) == 24
    assert max(orders.values()) < 300  # 200 each, give or take 14


def test_each_epoch_has_an_order_of_its_own_that_the_seed_decides():
    one, two = (D.DataLoader(numbers(), batch_size=4, shuffle=True, seed=7, numpy=True) for _ in range(2))
    first, second = seen(one), seen(one)
    assert first != second
    assert [seen(two), seen(two)] == [first, second]
    assert sorted(n for batch in first for n in batch) == list(range(10))
    assert seen(D.DataLoader(numbers(), batch_size=4, shuffle=True, seed=8, numpy=True)) != first


def test_a_pass_left_early_is_followed_by_the_next_epoch():
    loader = D.DataLoader(numbers(), batch_size=4, shuffle=True, seed=7, numpy=True)
    whole = D.DataLoader(numbers(), batch_size=4, shuffle=True, seed=7, numpy=True)
    epochs = [seen(whole), seen(whole)]
    for batch in loader:
        assert batch[0].tolist() == epochs[0][0]
        break
    assert seen(loader) == epochs[1]
    old = iter(loader)
    next(old)
    new = iter(loader)
    next(new)
    with pytest.raises(pg.DataError, match="another one was begun after it"):
        next(old)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_goes_on_in_the_middle_of_an_epoch(workers, prefetch):
    def made(seed):
        return D.DataLoader(
            numbers(23), batch_size=4, shuffle=True, seed=seed, num_workers=workers, prefetch_factor=prefetch
        )

    whole = made(3)
    want = seen(whole) + seen(whole)
    loader, got = made(3), []
    for batch in loader:
        got.append(batch[0].tolist())
        if len(got) == 2:
            saved = loader.state_dict()
            break
    assert (saved["epoch"], saved["batch"]) == (0, 2)  # what was read ahead does not count
    rest = made(99)
    rest.load_state_dict(saved)
    got += seen(rest)
    assert rest.epoch == 1
    assert got + seen(rest) == want
    rest.load_state_dict({**saved, "batch": 6})  # saved at the last batch: the next epoch follows
    assert rest.epoch == 1
    assert got[:6] + seen(rest) == want
    for each in (whole, loader, rest):
        each.close()


def test_a_state_of_other_data_is_refused():
    loader = D.DataLoader(numbers(10), batch_size=2, numpy=True)
    saved = loader.state_dict()
    other = D.DataLoader(numbers(12), batch_size=4, numpy=True)
    with pytest.raises(pg.StateError) as refused:
        other.load_state_dict(saved)
    assert str(refused.value) == (
        "cannot load this state into DataLoader: its samples is 10, here it is 12; its step is 2, here it is 4"
    )
    with pytest.raises(pg.StateError, match="its epoch is -1"):
        loader.load_state_dict({**saved, "epoch": -1})
    with pytest.raises(pg.StateError, match="it has no 'epoch'"):
        loader.load_state_dict({})


def test_incomplete_batches_can_be_dropped():
    assert len(D.DataLoader(numbers(), batch_size=4)) == 3
    loader = D.DataLoader(numbers(), batch_size=4, drop_last=True, numpy=True)
    assert (len(loader), seen(loader)) == (2, [[0, 1, 2, 3], [4, 5, 6, 7]])
    with pytest.raises(pg.DataError) as refused:
        D.DataLoader(numbers(), batch_size=11, drop_last=True)
    assert str(refused.value) == (
        "cannot make one batch: 10 samples are fewer than 11; take smaller batches, or drop_last=False"
    )


def test_shares_together_are_the_batches_of_one_process_with_bigger_ones():
    def loader(**how):
        return D.DataLoader(numbers(16), shuffle=True, seed=5, numpy=True, **how)

    shares = [seen(loader(batch_size=2, rank=r, world=2)) for r in range(2)]
    assert [a + b for a, b in zip(*shares, strict=True)] == seen(loader(batch_size=4))
    one = loader(batch_size=4)
    next(iter(one))
    moved = loader(batch_size=2, rank=1, world=2)
    moved.load_state_dict(one.state_dict())  # more processes, as many samples a step
    assert seen(moved) == shares[1][1:]


@pytest.mark.parametrize("n", [1, 5, 8, 9, 11, 13])
def test_shares_are_of_one_length_and_miss_nothing(n):
    world, size = 3, 2
    plans = [Plan(n, size, drop_last=False, rank=r, world=world) for r in range(world)]
    shares = [[p.batch(range(n), k) for k in range(p.batches)] for p in plans]
    assert len({tuple(len(b) for b in share) for share in shares}) == 1
    assert {i for share in shares for b in share for i in b} == set(range(n))


def test_streams_come_in_order_and_are_dealt(tmp_path):
    assert seen_stream(D.DataLoader(Stream(), batch_size=4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert seen_stream(D.DataLoader(Stream(), batch_size=4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert seen_stream(D.DataLoader(Stream(), batch_size=2, rank=1, world=2)) == [[2, 3], [6, 7]]
    loader = D.DataLoader(Stream(), batch_size=4)
    next(iter(loader))
    again = D.DataLoader(Stream(), batch_size=4)
    again.load_state_dict(loader.state_dict())
    assert seen_stream(again) == [[4, 5, 6, 7], [8, 9, 10]]
    with pytest.raises(TypeError, match="has no length"):
        len(loader)
    with pytest.raises(pg.DataError, match="cannot shuffle a stream"):
        D.DataLoader(Stream(), shuffle=True)


def seen_stream(loader):
    return [b.tolist() for b in loader]


def test_random_numbers_depend_on_the_batch_alone():
    def draw(samples):
        return [random.random(), float(np.random.random()), pg.random.uniform(()).item(), samples[0][0]]

    random.seed(1)
    before = random.getstate()
    one = D.DataLoader(numbers(6), batch_size=1, seed=4, collate_fn=draw, numpy=True)
    first = list(one)
    assert random.getstate() == before
    random.seed(2)
    pg.random.seed(9)
    other = D.DataLoader(numbers(6), batch_size=1, seed=4, collate_fn=draw, numpy=True)
    it = iter(other)
    got = [next(it)]
    resumed = D.DataLoader(numbers(6), batch_size=1, seed=0, collate_fn=draw, numpy=True)
    resumed.load_state_dict(other.state_dict())
    assert got + list(resumed) == first
    assert len({tuple(row[:3]) for row in first}) == 6


def test_workers_give_what_one_process_gives(device):
    wanted = seen(D.DataLoader(numbers(21), batch_size=4, shuffle=True, seed=2))
    loader = D.DataLoader(numbers(21), batch_size=4, shuffle=True, seed=2, num_workers=2)
    assert seen(loader) == wanted
    assert loader._pool.method == "spawn"  # a device is open
    pids = [p.pid for p in loader._pool.processes]
    for k, _ in enumerate(loader):
        if k == 1:
            break  # what is under way is thrown away, and the workers stay
    whole = D.DataLoader(numbers(21), batch_size=4, shuffle=True, seed=2)
    assert [seen(whole) for _ in range(3)][2] == seen(loader)
    assert [p.pid for p in loader._pool.processes] == pids
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 0})
    assert seen(loader) == wanted
    loader.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_in_a_worker_comes_with_its_traceback(prefetch):
    loader = D.DataLoader(
        numbers(8), batch_size=4, num_workers=1, collate_fn=operator.itemgetter(7), prefetch_factor=prefetch
    )
    with pytest.raises(pg.DataError) as refused:
        list(loader)
    text = str(refused.value)
    assert text.startswith("worker 0 failed on batch 0: IndexError: list index out of range\n\nIn the worker:\nTrace")
    assert "self.collate_fn" in text
    loader.close()


def test_a_worker_that_dies_is_reported():
    loader = D.DataLoader(numbers(8), batch_size=1, num_workers=1, prefetch_factor=1)
    batches = iter(loader)
    next(batches)
    os.kill(loader._pool.processes[0].pid, signal.SIGKILL)
    with pytest.raises(pg.DataError, match="worker 0 of the data loader was ended by signal 9 before its batch was"):
        list(batches)
    loader.close()


def test_what_cannot_be_sent_to_a_worker_is_said():
    loader = D.DataLoader(numbers(8), num_workers=1, collate_fn=lambda s: s, start_method="spawn")
    with pytest.raises(pg.DataError, match=r"cannot send the data set to workers \(.*use num_workers=0"):
        next(iter(loader))
    pg.ones(1).realize()
    with pytest.raises(pg.DataError, match="cannot fork workers while .* is open"):
        next(iter(D.DataLoader(numbers(8), num_workers=1, start_method="fork")))
    with pytest.raises(pg.DataError, match="cannot read arrays on a device in workers"):
        D.DataLoader(D.TensorDataset(pg.arange(4)), num_workers=1)


def test_workers_are_forked_before_a_device_is_open(tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(
        textwrap.dedent(
            """
            import polygrad as pg

            class Local(pg.data.Dataset):
                def __len__(self):
                    return 6

                def __getitem__(self, k):
                    return [k, k * 1.5]

            loader = pg.data.DataLoader(Local(), batch_size=2, num_workers=2, numpy=True)
            print([b[1].tolist() for b in loader], loader._pool.method)
            """
        )
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "[[0.0, 1.5], [3.0, 4.5], [6.0, 7.5]] fork\n"


def test_a_thread_reads_ahead_and_ends_with_the_pass():
    class Slow(Squares):
        reached = 0

        def __getitem__(self, k):
            Slow.reached = max(Slow.reached, k)
            return k

    loader = D.DataLoader(Slow(), batch_size=1, prefetch_factor=2)
    batches = iter(loader)
    next(batches)
    for _ in range(200):
        if Slow.reached >= 2:
            break
        time.sleep(0.01)
    assert Slow.reached >= 2
    assert Slow.reached <= 4  # two in the queue, one in the hand
    batches.close()
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name == "polygrad prefetch"]


def test_collating_says_what_does_not_fit():
    for samples, message in [
        ([np.zeros(2), np.zeros(3)], r"cannot collate samples of shapes \[2\] and \[3\]: pad them"),
        ([{"a": 1}, {"b": 1}], "cannot collate samples: they have different keys"),
        ([(1, [np.zeros(1)]), (1, [np.zeros(2)])], r"cannot collate \[1\]\[0\] of shapes"),
        ([(1,), (1, 2)], r"they have \[1, 2\] parts"),
        ([(1,), 1], "one is tuple, another int"),
    ]:
        with pytest.raises(pg.DataError, match=message):
            D.collate(samples)
    Pair = collections.namedtuple("Pair", "x y")
    batch = D.collate([Pair(1, None), Pair(2, None)])
    assert (batch.x.tolist(), batch.y) == ([1, 2], [None, None])


def test_sets_are_split_and_joined():
    parts = D.random_split(numbers(10), [0.5, 0.25, 0.25], seed=1)
    assert [len(p) for p in parts] == [6, 2, 2]
    values = [[p[k][0] for k in range(len(p))] for p in parts]
    assert sorted(n for part in values for n in part) == list(range(10))
    assert parts[1].batch([1, 0])[0].tolist() == values[1][::-1]
    assert len(D.random_split(numbers(10), [7, 3])[1]) == 3
    with pytest.raises(pg.DataError, match="the lengths must add up to 10"):
        D.random_split(numbers(10), [7, 4])
    with pytest.raises(pg.DataError, match="they must add up to 1"):
        D.random_split(numbers(10), [0.5, 0.6])
    both = D.ConcatDataset([numbers(3), numbers(2)])
    assert [int(both[k][0]) for k in range(5)] == [0, 1, 2, 0, 1]
    with pytest.raises(IndexError):
        both[5]
    with pytest.raises(pg.DataError, match="cannot take sample 7 of a set of 3"):
        D.Subset(numbers(3), [0, 7])
    with pytest.raises(pg.DataError, match="the lengths must be equal"):
        D.TensorDataset(np.zeros(3), np.zeros(4))


def test_a_loader_refuses_what_makes_no_sense():
    for how, message in [
        ({"batch_size": 0}, "batches of 0 samples"),
        ({"num_workers": -1}, "-1 workers"),
        ({"rank": 2, "world": 2}, r"rank 2 of 2: it must be in \[0, 2\)"),
    ]:
        with pytest.raises(pg.DataError, match=message):
            D.DataLoader(numbers(), **how)
    with pytest.raises(pg.DataError, match="cannot load int: a data set has"):
        D.DataLoader(7)
    with pytest.raises(pg.DataError, match="0 samples"):
        D.DataLoader(D.TensorDataset(np.zeros(0)))


# ---- files of tokens


@pytest.mark.parametrize(("dtype", "vocab"), [("uint8", 256), ("uint16", 50257), ("uint32", 70000)])
def test_tokens_come_back_in_windows(device, tmp_path, dtype, vocab):
    tokens = [k * 7919 % vocab for k in range(50)]
    assert D.write_tokens(tmp_path / "a", iter(tokens), vocab_size=vocab) == 50
    file = D.TokenFile(tmp_path / "a", vocab_size=vocab)
    assert (len(file), file.dtype.name, file.vocab_size) == (50, dtype, vocab)
    assert file[:].tolist() == tokens
    file.verify()
    windows = file.windows(8)
    assert len(windows) == 6
    x, y = windows.batch([5, 0])
    assert (x.tolist(), y.tolist()) == ([tokens[40:48], tokens[:8]], [tokens[41:49], tokens[1:9]])
    assert x.device == device
    assert windows[5][0].tolist() == tokens[40:48]
    assert len(file.windows(8, stride=1)) == 42
    assert file.windows(8, stride=1)[41][1].tolist() == tokens[42:50]
    with pytest.raises(IndexError, match="cannot take window 6 of 6"):
        windows.batch([6])


def test_random_windows_change_with_the_epoch_and_can_be_resumed(tmp_path):
    D.write_tokens(tmp_path / "a", range(1000))
    file = D.TokenFile(tmp_path / "a")

    def made(workers=0):
        return D.DataLoader(file.random_windows(10, samples=12, seed=3), batch_size=3, numpy=True, num_workers=workers)

    loader = made()
    first, second = ([b[0].tolist() for b in loader] for _ in range(2))
    assert first != second
    assert all(row[0] <= 989 and row == list(range(row[0], row[0] + 10)) for b in first + second for row in b)
    other = made(workers=1)
    other.load_state_dict({**loader.state_dict(), "epoch": 1, "batch": 2})
    assert [b[0].tolist() for b in other] == second[2:]
    other.close()
    parts = D.ConcatDataset([D.Subset(file.random_windows(10, samples=12, seed=3), range(6)), numbers(2)])
    parts.set_epoch(1)
    assert parts[0][0].tolist() == second[0][0]  # sets made of others pass the epoch on
    starts = {file.random_windows(999, 50).start(k) for k in range(50)}
    assert starts == {0}  # the last window's successor is the last token


def test_files_that_are_no_tokens_are_refused(tmp_path):
    path = tmp_path / "a"
    D.write_tokens(path, range(100), vocab_size=100, dtype="uint16")
    good = path.read_bytes()

    def refused(content, message):
        path.write_bytes(content)
        with pytest.raises(pg.StateError, match=message):
            D.TokenFile(path)

    refused(b"", "it is no file of tokens")
    refused(b"x" * 300, "it is no file of tokens")
    refused(good[:-1], "it has 263 bytes, and 100 tokens of 2 bytes need 264: it was cut short or added to")
    refused(good + b"1", "it was cut short or added to")
    refused(good[:20] + b"\xff" + good[21:], "its header is damaged")
    later = bytearray(good)
    later[8:12] = struct.pack("<I", 2)
    later[40:44] = struct.pack("<I", zlib.crc32(bytes(later[:36])))
    refused(bytes(later), "it has version 2, and this polygrad reads 1")
    path.write_bytes(good[:-1] + b"\x01")
    with pytest.raises(pg.StateError, match="its tokens do not fit their checksum"):
        D.TokenFile(path).verify()
    path.write_bytes(good)
    with pytest.raises(pg.StateError, match="of a vocabulary of 100, not of 99"):
        D.TokenFile(path, vocab_size=99)
    with pytest.raises(pg.DataError, match="cannot take tokens 95 to 105"):
        D.TokenFile(path).raw(95, 10)
    with pytest.raises(pg.DataError, match="it has 100 tokens, and a window and its successor need one more"):
        D.TokenFile(path).windows(100)
    assert len(D.TokenFile(path).windows(99)) == 1


def test_a_bad_token_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "a"
    D.write_tokens(path, range(5))
    with pytest.raises(pg.DataError, match=r"cannot write token 7 at place 3: tokens are in \[0, 7\)"):
        D.write_tokens(path, [1, 2, 3, 7], vocab_size=7)
    with pytest.raises(pg.DataError, match="cannot write token -1 at place 0"):
        D.write_tokens(path, [-1])
    with pytest.raises(pg.DataError, match="they are uint8, uint16 or uint32"):
        D.write_tokens(path, [1], dtype="float32")
    assert D.TokenFile(path)[:].tolist() == [0, 1, 2, 3, 4]
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_order_of_many_samples_takes_no_memory():
    order = D.Permutation(10**12, key=1)
    assert len({order[k] for k in range(100)}) == 100
    assert all(0 <= order[k] < 10**12 for k in range(100))
    assert math.isclose(sum(order[k] for k in range(1000)) / 1000, 5e11, rel_tol=0.15)
