"""What the verifier of kernels and launches refuses, and that what it accepts is safe.

Here: `polygrad.driver.verify`. Not here: how launches are put together (the schedule's tests); any driver.
"""

import numpy as np
import pytest

from polygrad.driver import oracle
from polygrad.driver.ir import Instr, Kernel, Store, View, placements
from polygrad.driver.launch import decode
from polygrad.driver.oracle import run
from polygrad.driver.verify import VerifyError, verify, verify_launch
from support.kernels import CASES, GOOD, D, F, launched, program, softmax

RNG = np.random.default_rng(20)


# ---- kernels ---------------------------------------------------------------------------------------------------------


INTS = (4, 6, 0, 6, 1, 6, 0, 0, 1, 9, 0, 0, 2, 6, 1)


def with_instr(position, instr):
    return GOOD._replace(body=(*GOOD.body[:position], instr, *GOOD.body[position + 1 :]))


def with_extra(*instr, **fields):
    return GOOD._replace(body=(*GOOD.body, Instr(*instr)), **fields)


def with_view(number, **fields):
    views = list(GOOD.views)
    views[number] = views[number]._replace(**fields)
    return GOOD._replace(views=tuple(views))


REFUSED = [
    (GOOD._replace(parallel=-1), "both are >= 0"),
    (GOOD._replace(buffers=("float8", *GOOD.buffers[1:])), "buffer 0 has dtype 'float8'"),
    (GOOD._replace(scalars=("int4", "bool")), "scalar 0 has dtype 'int4'"),
    (with_view(0, buffer=9), "view 0: there is no buffer 9"),
    (with_view(1, buffer=3), "view 1: it addresses buffer 3, the status word"),
    (with_view(0, dtype=D), "view 0: its dtype is float64, that of buffer 0 is float32"),
    (with_view(0, strides=(1,)), "view 0: it has 1 strides; the kernel has 2 axes"),
    (with_view(0, strides=(2, 1)), "each is 0, 1 or None"),
    (with_view(0, window=(2,)), "its window names axes"),
    (with_view(0, window=(1, 1)), "its window names axes"),
    (with_view(0, gathers=-1), "it has -1 gathers"),
    (with_view(0, fill="x"), "view 0: its fill is 'x'"),
    (with_view(0, fill=-0.0), "view 0: its fill is -0.0"),
    (with_view(1, fill=2**31), "view 1: its fill is 2147483648; it must be an int that int32 can hold"),
    (with_instr(5, Instr("const", F, (), float("nan"))), "%5 = const: its value is a NaN other than math.nan"),
    (with_instr(5, Instr("const", F, (), True)), "%5 = const: its value is True"),
    (with_extra("const", "bool", (), 2), "%13 = const: its value is 2; a bool"),
    (with_extra("const", "uint8", (), -1), "%13 = const: its value is -1"),
    (with_extra("const", "int32", (), 1.0), "%13 = const: its value is 1.0"),
    (with_extra("frobnicate", F), "%13 = frobnicate: there is no such instruction"),
    (with_extra("add", "float8", (0, 0)), "%13 = add: its dtype is 'float8'"),
    (with_extra("add", F, (0, 13)), "%13 = add: it uses %13, which does not come before it"),
    (with_extra("add", F, (0, -1)), "%13 = add: it uses %-1"),
    (with_extra("add", F, (0,)), "%13 = add: it has 1 operands; it takes 2"),
    (with_extra("add", F, (0, 0), 1), "%13 = add: its attr is 1; it takes none"),
    (with_extra("add", F, (0, 1)), "%13 = add: its operands are float32 and int32"),
    (with_extra("add", D, (0, 0)), "%13 = add: its dtype is float64; on float32 operands it is float32"),
    (with_extra("add", "bool", (4, 4)), "%13 = add: its operands are bool; it takes int or float"),
    (with_extra("less", F, (0, 0)), "%13 = less: its dtype is float32; on float32 operands it is bool"),
    (with_extra("quotient", F, (0, 0)), "%13 = quotient: its operands are float32; it takes int"),
    (with_extra("add", F, (0, 0), None, 4), "%13 = add: it has a guard; only a load may"),
    (with_extra("load", F, (), 0, 13), "%13 = load: its guard is %13, which does not come before"),
    (with_extra("load", F, (), 0, 1), "%13 = load: its guard %1 is int32"),
    (with_extra("load", F, (), 7), "%13 = load: there is no view 7"),
    (with_extra("load", F, (), 4), "%13 = load: view 4 is partial"),
    (with_extra("load", D, (), 0), "%13 = load: its dtype is float64"),
    (with_extra("load", F, (), 2), "%13 = load: it has 0 operands; it takes 1"),
    (with_extra("load", F, (0,), 2), "%13 = load: its gather index %0 is float32"),
    (with_extra("scalar", F, (), 2), "%13 = scalar: there is no scalar 2"),
    (with_extra("scalar", D, (), 0), "%13 = scalar: its dtype is float64"),
    (with_extra("iota", "int16", (), 0), "%13 = iota: its dtype is int16"),
    (with_extra("iota", "int32", (), 2), "%13 = iota: there is no axis 2"),
    (with_extra("bitcast", D, (0,)), "%13 = bitcast: it goes from float32 to float64"),
    (with_extra("bitcast", "uint8", (4,)), "%13 = bitcast: it goes from bool to uint8; the bits of a bool"),
    (with_extra("cast", D, (0, 0)), "%13 = cast: it has 2 operands; it takes 1"),
    (with_extra("where", F, (0, 0, 0)), "%13 = where: its condition %0 is float32"),
    (with_extra("where", F, (4, 0, 1)), "%13 = where: its arms are float32 and int32"),
    (with_extra("reduce", F, (0,), "mean"), "%13 = reduce: its attr is 'mean'"),
    (with_extra("reduce", "bool", (12,), "sum"), "%13 = reduce: sum does not take bool"),
    (with_extra("reduce", D, (0,), "sum"), "%13 = reduce: its dtype is float64"),
    (with_extra("reduce", F, (10,), "sum"), "%13 = reduce: its operand %10 is a ROW value"),
    (GOOD._replace(stores=()), "the kernel stores nothing"),
    (GOOD._replace(stores=(Store(99, 3),)), "store 0 of %99"),
    (GOOD._replace(stores=(Store(11, 9),)), "store 0 of %11: there is no view 9"),
    (GOOD._replace(stores=(Store(1, 3),)), "store 0 of %1: the value is int32, view 3 is float32"),
    (GOOD._replace(stores=(Store(9, 0),)), "store 0 of %9: view 0 has a window or gathers"),
    (GOOD._replace(stores=(Store(11, 3), Store(10, 3))), "store 1 of %10: view 3 is stored to twice"),
    (GOOD._replace(stores=(Store(10, 4),)), "store 0 of %10: it is partial and the value is a ROW value"),
    (with_view(4, strides=(1, 1)), "store 1 of %9: it is partial and its strides"),
    (with_view(3, strides=(1, 1)), "store 0 of %11: it stores a ROW value and its strides"),
    (GOOD._replace(status=-1), "the kernel gathers and has no status word"),
    (softmax()._replace(status=0), "the status word, which only gathers write"),
    (softmax()._replace(buffers=(F, F, "int32"), status=2), "no load gathers"),
    (GOOD._replace(buffers=(*GOOD.buffers[:3], "int64", F)), "the status word is buffer 3; that must be an int32"),
]


def test_the_good_kernel_is_accepted():
    verify(GOOD)
    verify_launch(GOOD, [24, 4, 4, 4, 12], INTS, (1.5, True))


@pytest.mark.parametrize(("kernel", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_malformed_kernel_is_refused_in_a_sentence_that_names_it(kernel, words):
    with pytest.raises(VerifyError) as caught:
        verify(kernel)
    assert words in str(caught.value)


def test_arithmetic_on_storage_is_refused():
    views = (View(0, "float16", (1, 1)), View(1, "float16", (0, 1), partial=True))
    half = Kernel(1, 1, ("float16", "float16"), views, (),
                  program(("load", "float16", (), 0), ("add", "float16", (0, 0))), (Store(1, 1),))  # fmt: skip
    with pytest.raises(VerifyError, match="%1 = add: its operands are float16, which is storage only"):
        verify(half)
    with pytest.raises(VerifyError, match="%1 = reduce: its operand is float16, which is storage only"):
        verify(half._replace(body=program(half.body[0], ("reduce", "float16", (0,), "max"))))
    with pytest.raises(VerifyError, match="store 0 of %0: it is partial and the value is float16"):
        verify(half._replace(body=half.body[:1], stores=(Store(0, 1),)))


def launch_ints(**changes):
    found = dict(zip(GOOD.int_names, INTS, strict=True))
    found.update({name.replace("_", "."): value for name, value in changes.items()})
    return tuple(found.values())


SIZES = [24, 4, 4, 4, 12]
LAUNCHES = [
    (SIZES[:4], INTS, (1.5, True), "the launch has 4 buffers; the kernel takes 5"),
    (SIZES, INTS[:-1], (1.5, True), "the launch has 14 ints; the kernel takes 15"),
    (SIZES, INTS, (1.5,), "the launch has 1 scalars; the kernel takes 2"),
    (SIZES, INTS, ("a", True), "scalar 0 is 'a'"),
    (SIZES, INTS, (1.5, 3), "scalar 1 is 3; a bool"),
    (SIZES, launch_ints(n0=4.0), (1.5, True), "launch int n0 is 4.0"),
    (SIZES, launch_ints(n1=0), (1.5, True), "axis 1 has extent 0"),
    (SIZES, launch_ints(tag=0), (1.5, True), "the tag is 0"),
    (SIZES, launch_ints(tag=2**31), (1.5, True), "the tag is 2147483648"),
    ([24, 4, 4, 3, 12], INTS, (1.5, True), "the status buffer has 3 elements"),
    ([23, 4, 4, 4, 12], INTS, (1.5, True), "%0 = load of view 0: addresses 1 to 23 leave a buffer of 23"),
    (SIZES, launch_ints(v0_o=-2), (1.5, True), "%0 = load of view 0: addresses -1 to 21 leave"),
    (SIZES, launch_ints(v2_gn0=25), (1.5, True), "%2 = load of view 2: addresses 0 to 24 leave"),
    (SIZES, launch_ints(v2_gn0=0), (1.5, True), "%2 = load of view 2: it gathers from an axis of size 0"),
    ([24, 4, 3, 4, 12], INTS, (1.5, True), "store 0 of %11: addresses 0 to 3 leave a buffer of 3"),
    ([24, 4, 4, 4, 11], INTS, (1.5, True), "store 1 of %9: addresses 0 to 11 leave"),
    (SIZES, launch_ints(v4_parts=0), (1.5, True), "store 1 of %9: 0 parts of 4 rows"),
    (SIZES, launch_ints(v4_parts=5), (1.5, True), "store 1 of %9: 5 parts of 4 rows"),
    ([99, 4, 4, 4, 99], launch_ints(v4_parts=3), (1.5, True), "store 1 of %9: 3 parts of 4 rows; no part may be empty"),
    (SIZES, launch_ints(v4_ps=5), (1.5, True), "store 1 of %9: strides (1, 5) over extents (6, 2) may write one"),
]


@pytest.mark.parametrize(("sizes", "ints", "scalars", "words"), LAUNCHES, ids=[row[3] for row in LAUNCHES])
def test_a_wrong_launch_is_refused_in_a_sentence(sizes, ints, scalars, words):
    with pytest.raises(VerifyError) as caught:
        verify_launch(GOOD, sizes, ints, scalars)
    assert words in str(caught.value)


def copier(store_view, reduced=0):
    view = View(0, F, (None, None))
    return Kernel(2 - reduced, reduced, (F,), (view, store_view), (), program(("load", F, (), 0)), (Store(0, 1),))


@pytest.mark.parametrize(("load", "store", "fine"), [
    ((0, 4, 1), (0, 4, 1), True),      # identical
    ((0, 4, 1), (0, 1, 4), False),     # a transpose in place
    ((0, 4, 1), (1, 4, 1), False),     # shifted by one
    ((0, 4, 1), (12, 4, 1), True),     # apart
    ((0, 8, 2), (1, 8, 2), True),      # even and odd
    ((0, 8, 1), (4, 8, 1), True),      # left half into right half
    ((11, -4, -1), (12, 4, 1), True),  # reversed, apart
    ((11, -4, -1), (0, 4, 1), False),  # reversed, in place
])  # fmt: skip
def test_a_kernel_writes_what_it_reads_only_through_an_identical_view(load, store, fine):
    kernel = copier(View(0, F, (None, None)))
    verify(kernel)
    if fine:
        verify_launch(kernel, [40], (3, 4, *load, *store), ())
    else:
        with pytest.raises(VerifyError, match="%0 = load of view 0: it may overlap store 0 of %0 in buffer 0"):
            verify_launch(kernel, [40], (3, 4, *load, *store), ())


def test_in_place_needs_a_kernel_without_reduced_axes():
    with pytest.raises(VerifyError, match="without reduced axes"):
        verify_launch(copier(View(0, F, (None, None)), reduced=1), [12], (3, 4, 0, 4, 1, 0, 4, 1), ())


def test_stores_may_interleave_but_not_overlap():
    kernel = Kernel(1, 0, (F,), (View(0, F, (None,)), View(0, F, (None,))), (F,),
                    program(("scalar", F, (), 0)), (Store(0, 0), Store(0, 1)))  # fmt: skip
    verify(kernel)
    verify_launch(kernel, [10], (5, 0, 2, 1, 2), (1.0,))
    with pytest.raises(VerifyError, match="store 1 of %0 may overlap store 0 of %0 in buffer 0"):
        verify_launch(kernel, [10], (5, 0, 1, 4, 1), (1.0,))
    with pytest.raises(VerifyError, match="must be injective"):
        verify_launch(kernel, [10], (5, 0, 0, 4, 1), (1.0,))


def touched(case, ints):
    """Return the addresses that each store of a launch writes, with their buffers."""
    launch = decode(case.kernel, ints)
    values = oracle.evaluate(case.kernel, case.fresh(), ints, case.scalars)
    for store in case.kernel.stores:
        full = placements(case.kernel)[store.value].full
        address, _ = oracle.written(case.kernel, launch, store.view, values[store.value], full)
        yield case.kernel.views[store.view].buffer, address.ravel()


def test_a_launch_that_is_accepted_stays_in_bounds_and_writes_nothing_twice():
    accepted = refused = 0
    for case in CASES:
        for _ in range(8):
            ints = list(case.ints)
            ints[RNG.integers(len(ints))] += int(RNG.choice([-7, -2, -1, 1, 2, 7]))
            try:
                verify_launch(case.kernel, [len(b) for b in case.buffers], ints, case.scalars)
            except VerifyError:
                refused += 1
                continue
            accepted += 1
            run(case.kernel, case.fresh(), ints, case.scalars)
            written = {}
            for buffer, address in touched(case, ints):
                written.setdefault(buffer, []).append(address)
            for addresses in written.values():
                every = np.concatenate(addresses)
                assert len(np.unique(every)) == len(every)
    assert min(accepted, refused) > 100


def test_an_empty_window_reads_nothing_so_any_address_is_fine():
    kernel = Kernel(
        1, 0, (F, F), (View(0, F, (1,), (0,)), View(1, F, (1,))), (), program(("load", F, (), 0)), (Store(0, 1),)
    )
    out = np.ones(3, np.float32)
    launched(kernel, [np.zeros(1, np.float32), out], (3, 500, 2, 2, 0))
    assert out.tolist() == [0, 0, 0]
