"""Level 1, memory: blocks are what was asked for, keep what is written, and are refused in the right way.

Here: allocate, free, write, read, view, adopt, export and import.
Not here: kernels.
"""

import gc
import weakref
from typing import Any

import numpy as np

from polygrad.driver import Ref, oracle
from polygrad.driver.ir import DTYPES, ITEMSIZE
from polygrad.errors import OutOfMemory
from polygrad_conformance.bench import Bench
from polygrad_conformance.capsules import CODES, tensor_of
from polygrad_conformance.case import Array
from polygrad_conformance.checks import check

SIZES = (1, 2, 3, 4, 7, 8, 63, 64, 65, 255, 256, 257, 511, 513, 4095, 4096, 4097, 65535, 65537, (1 << 20) + 1)
AROUND = 16  # bytes of guard on either side of what a read fills


def pattern(bench: Bench, count: int, key: int) -> Array:
    """Return random bytes."""
    return bench.rng(1, key).integers(0, 256, count, dtype=np.uint8)


def fits(bench: Bench, nbytes: int) -> bool:
    """Say whether the device can be asked for so much without harm."""
    return bool(nbytes <= bench.info.limits.max_alloc and 4 * nbytes <= bench.info.limits.total)


@check("L1.allocate.sizes")
def blocks_of_every_size_keep_their_bytes(bench: Bench) -> None:
    """Sizes at and around powers of two: the last byte is as good as the first."""
    for nbytes in (s for s in SIZES if fits(bench, s)):
        data = pattern(bench, nbytes, nbytes)
        handle = bench.put(data)
        assert (bench.read(handle, "uint8", nbytes) == data).all(), f"a block of {nbytes} bytes lost some of them"
        bench.free(handle)


@check("L1.allocate.distinct")
def live_blocks_do_not_overlap(bench: Bench) -> None:
    """Forty blocks alive at once each keep their own pattern."""
    sizes = [1 + 97 * k % 1500 for k in range(40)]
    data = [pattern(bench, n, 100 + k) for k, n in enumerate(sizes)]
    handles = [bench.put(d) for d in data]
    for k, (handle, mine) in enumerate(zip(handles, data, strict=True)):
        assert (bench.read(handle, "uint8", len(mine)) == mine).all(), f"block {k} was overwritten through another one"


@check("L1.allocate.aligned", needs=("feature.host_memory",))
def blocks_are_aligned(bench: Bench) -> None:
    """Blocks of host memory begin where limits.alignment promises."""
    alignment = bench.info.limits.alignment
    for nbytes in (1, 3, 64, 100, 5000):
        view = bench.device.view(bench.allocate(nbytes), nbytes)
        assert view is not None, "features.host_memory is declared, but view() gives None"
        address = np.frombuffer(view, np.uint8).ctypes.data
        assert address % alignment == 0, f"a block of {nbytes} bytes lies at {address:#x}, alignment is {alignment}"


@check("L1.free.storm")
def freed_blocks_come_back_clean(bench: Bench) -> None:
    """Random allocating and freeing never disturbs what lives."""
    rng = bench.rng(2)
    live: list[tuple[Any, Array]] = []
    for turn in range(4 * bench.effort.repeats):
        if live and (len(live) > 12 or rng.random() < 0.5):
            handle, data = live.pop(int(rng.integers(len(live))))
            assert (bench.read(handle, "uint8", len(data)) == data).all(), f"turn {turn}: a live block has changed"
            bench.free(handle)
        else:
            data = pattern(bench, int(rng.integers(1, 3000)), 1000 + turn)
            live.append((bench.put(data), data))
    for handle, data in live:
        assert (bench.read(handle, "uint8", len(data)) == data).all(), "a live block has changed"


@check("L1.free.room")
def freeing_gives_room(bench: Bench) -> None:
    """What is freed can be had again: in all, far more than the device holds is allocated."""
    limits = bench.info.limits
    nbytes = min(limits.max_alloc, limits.total // 2, 1 << 22)
    for turn in range(64 if limits.total > 1 << 30 else 8):
        try:
            bench.free(bench.allocate(nbytes))
        except OutOfMemory as error:
            message = f"after {turn} blocks of {nbytes} bytes, each freed, there is no room: {error}"
            raise AssertionError(message) from None


@check("L1.memory.info")
def memory_info_is_sane(bench: Bench) -> None:
    """If the device counts its memory, free is within total, and no more after a big allocation than before."""
    before = bench.device.memory_info()
    if before is None:
        return
    assert 0 <= before.free <= before.total, f"{before.free} bytes are free of {before.total}"
    assert before.total > 0, "the device says that it has no memory"
    handle = bench.allocate(min(1 << 16, bench.info.limits.max_alloc))
    after = bench.device.memory_info()
    assert after is not None, "memory_info() gave a MemoryInfo, then None"
    assert after.total == before.total, f"total was {before.total} and is {after.total}"
    bench.free(handle)


@check("L1.memory.over_limit", needs=("limit.max_alloc",))
def too_much_is_refused_as_out_of_memory(bench: Bench) -> None:
    """More than max_alloc raises OutOfMemory, and the device works on."""
    with bench.raises(OutOfMemory, "allocating more than limits.max_alloc"):
        bench.allocate(bench.info.limits.max_alloc + 1)
    data = pattern(bench, 100, 5)
    assert (bench.read(bench.put(data), "uint8", 100) == data).all(), "after OutOfMemory the device loses bytes"


@check("L1.rw.lengths")
def every_length_at_every_offset(bench: Bench) -> None:
    """Transfers of 1 to 257 bytes at odd offsets touch exactly what they name, on both sides."""
    base = pattern(bench, 300, 6)
    handle = bench.put(base)
    for count in range(1, 258):
        offset = count % 7
        data = pattern(bench, count, 300 + count)
        bench.write(handle, data, offset)
        wanted = base.copy()
        wanted[offset : offset + count] = data
        if count % 16 == 1:
            got = bench.read(handle, "uint8", len(base))
            assert (got == wanted).all(), (
                f"writing {count} bytes at {offset} changed {np.flatnonzero(got != wanted)[:5]}"
            )
        host = np.full(count + 2 * AROUND, 0xA7, np.uint8)
        into = host[AROUND : AROUND + count].data
        bench.device.launch_op("read", (), (Ref(handle, offset, (count,), (1,), "uint8"),), {"into": into})
        assert (host[AROUND : AROUND + count] == data).all(), f"reading {count} bytes at {offset} gave other bytes"
        outside = np.concatenate([host[:AROUND], host[AROUND + count :]])
        assert (outside == 0xA7).all(), f"reading {count} bytes wrote beyond the memory that it was given"
        base = wanted


@check("L1.rw.dtype.{0}", each=[(d,) for d in DTYPES], needs=lambda d: (f"dtype.{d}",))
def offsets_count_elements(bench: Bench, dtype: str) -> None:
    """An offset counts elements of the Ref's dtype, and bits pass unchanged, NaN payloads too."""
    raw = pattern(bench, 64 * ITEMSIZE[dtype], 7)
    if dtype == "bool":
        raw &= np.uint8(1)
    data = raw.view(oracle.compute_dtype(dtype))
    handle = bench.put(data)
    part = np.roll(data[:20], 3)
    bench.write(handle, part, 11)
    wanted = raw.copy()
    wanted[11 * ITEMSIZE[dtype] : 31 * ITEMSIZE[dtype]] = part.view(np.uint8)
    assert (bench.read(handle, dtype, 64).view(np.uint8) == wanted).all(), f"{dtype} at element 11 lies elsewhere"
    tail = bench.read(handle, dtype, 40, 24).view(np.uint8)
    assert (tail == wanted[24 * ITEMSIZE[dtype] :]).all(), f"reading {dtype} from element 24 on gave something else"
    bench.exercised.add(f"dtype.{dtype}")


@check("L1.write.source_reuse")
def source_is_free_after_write(bench: Bench) -> None:
    """A driver is done with the source when write returns: it may be overwritten at once."""
    nbytes = min(1 << 16, bench.info.limits.max_alloc)
    handle = bench.allocate(nbytes)
    source = bytearray(pattern(bench, nbytes, 8).tobytes())
    wanted = bytes(source)
    ref = Ref(handle, 0, (nbytes,), (1,), "uint8")
    bench.device.launch_op("write", (ref,), (), {"data": memoryview(source).toreadonly()})
    source[:] = bytes(nbytes)
    got = bench.read(handle, "uint8", nbytes).tobytes()
    assert got == wanted, "the device holds what the source became after write had returned"


@check("L1.write.order")
def last_write_wins(bench: Bench) -> None:
    """Of many writes to one block, a read sees the last."""
    handle = bench.allocate(4096)
    for turn in range(25):
        bench.write(handle, np.full(4096, turn, np.uint8))
        if turn % 5 == 4:
            got = bench.read(handle, "uint8", 4096)
            assert (got == turn).all(), f"after write {turn} a read gave {got[got != turn][0]}"


@check("L1.host.view", needs=("feature.host_memory",))
def view_is_the_block(bench: Bench) -> None:
    """view() shows what was written, and what is written through it is read."""
    data = pattern(bench, 1000, 9)
    handle = bench.put(data)
    view = bench.device.view(handle, 1000)
    assert view is not None, "features.host_memory is declared, but view() gives None"
    seen = np.frombuffer(view, np.uint8)
    assert len(seen) == 1000, f"view() of 1000 bytes has {len(seen)}"
    assert (seen == data).all(), "view() does not show what was written"
    np.asarray(view)[3] = data[3] ^ 0xFF
    assert bench.read(handle, "uint8", 1000)[3] == data[3] ^ 0xFF, "what is written through view() is not in the block"


@check("L1.host.adopt", needs=("feature.host_memory",))
def adopted_memory_is_shared(bench: Bench) -> None:
    """adopt() makes a handle on foreign memory without a copy."""
    host = np.zeros(512, np.uint8)
    handle = bench.device.adopt(host.data)
    assert handle is not None, "features.host_memory is declared, but adopt() gives None"
    data = pattern(bench, 512, 10)
    bench.write(handle, data)
    bench.device.synchronize()
    assert (host == data).all(), "a write to adopted memory does not arrive in it"
    bench.device.free(handle)


# ---- memory shared by DLPack, by drivers that export some: the others have nothing to show here ------------------


class Owner:
    """What has to live as long as anything that was exported with it."""


def exported(bench: Bench, ref: Ref, owner: object) -> Any:
    """Return what the driver exports *ref* by, which says where its memory lies; None if it exports none."""
    found = bench.device.export(ref, owner)
    assert found is None or hasattr(found, "__dlpack__"), f"export() gave {found!r}, which has no __dlpack__"
    return found


@check("L1.share.export")
def an_export_is_what_was_asked_for(bench: Bench) -> None:
    """export() gives a tensor of the ref's shape, strides, dtype and place, whatever its offset, or None."""
    sizes = {"uint8": 1, "int32": 4, "int64": 8, "float16": 2, "float32": 4, "float64": 8, "complex64": 8}
    for dtype, size in sizes.items():
        if dtype not in bench.info.dtypes and dtype != "complex64":
            continue
        handle = bench.allocate(40 * size)
        places = []
        for offset in (0, 5):
            ref = Ref(handle, offset, (2, 3), (12, 2), dtype)
            found = exported(bench, ref, Owner())
            if found is None:
                break
            capsule = found.__dlpack__()
            seen, letters = tensor_of(capsule), dtype.rstrip("0123456789")
            assert seen.device == tuple(map(int, found.__dlpack_device__())), "the tensor lies on another device"
            assert (seen.code, seen.bits) == (CODES[letters], 8 * size), f"{dtype} is exported as another dtype"
            assert seen.shape == ref.shape, f"{ref.shape} is exported as {seen.shape}"
            assert seen.strides == ref.strides, f"strides of {ref.strides} are exported as {seen.strides}"
            places.append(seen.place)
        if len(places) == 2:
            apart = places[1] - places[0]
            assert apart == 5 * size, f"5 elements of {dtype} further on is exported {apart} bytes further on"


@check("L1.share.owner")
def an_export_keeps_its_owner(bench: Bench) -> None:
    """What was exported keeps the owner alive while anybody has it, and lets it go afterwards."""
    owner = Owner()
    there = weakref.ref(owner)
    found = exported(bench, Ref(bench.allocate(256), 0, (64,), (1,), "uint8"), owner)
    if found is None:
        return
    del owner
    gc.collect()
    assert there() is not None, "what was exported does not keep its owner alive"
    capsule = found.__dlpack__()
    del found
    gc.collect()
    assert there() is not None, "a capsule of what was exported does not keep the owner alive"
    del capsule
    gc.collect()
    assert there() is None, "the owner is kept alive when nobody has what was exported any more"


@check("L1.share.import")
def an_import_is_the_same_memory(bench: Bench) -> None:
    """import() of what the driver exports is that memory, part by part, and keeps it alive."""
    numbers = np.arange(40, dtype=np.int32)
    handle, owner = bench.put(numbers), Owner()
    there = weakref.ref(owner)
    found = exported(bench, Ref(handle, 5, (2, 3), (12, 2), "int32"), owner)
    made = None if found is None else bench.device.import_(found)
    if made is None:
        return
    del owner, found
    gc.collect()
    bench.device.synchronize()
    assert there() is not None, "what is imported does not keep the exporter's memory alive"
    (block, offset, shape, strides, dtype), keeper = made
    assert (shape, dtype) == ((2, 3), "int32"), f"int32[2, 3] is imported as {dtype}{list(shape)}"

    def element(row: int, column: int) -> int:
        return int(bench.read(block, "int32", 1, offset + row * strides[0] + column * strides[1])[0])

    got = [element(row, column) for row in range(2) for column in range(3)]
    assert got == [5, 7, 9, 17, 19, 21], f"elements 5, 7, 9, 17, 19, 21 are imported as {got}"
    bench.write(handle, np.full(40, -1, np.int32))
    assert element(1, 2) == -1, "what is imported is a copy: a write to the block does not show in it"
    del keeper, made
