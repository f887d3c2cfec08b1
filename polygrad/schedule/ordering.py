"""The steps of a plan in the making, and the order in which they run.

Here: `Step`, and `in_order`.
Not here: which steps there are (`fuse.py`), the records that the runtime executes (`steps.py`).
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from polygrad.graph.node import Node
from polygrad.schedule.group import Group
from polygrad.schedule.views import View


class Epilogue(NamedTuple):
    """What a product ends with: its step makes *result* = activation(product + addend), and not the product."""

    result: Node
    addend: View  # of the product's shape
    activation: str  # "relu", or nothing


Place = tuple[Node, int, tuple[int, ...]]  # an array, the offset of a result in it, and its strides


class Step:
    """A kernel (`group`) or a library op (`node`) of the plan, with the nodes that it reads and those that it makes."""

    __slots__ = (
        "after",
        "copies",
        "epilogue",
        "finish",
        "group",
        "inputs",
        "node",
        "operands",
        "outputs",
        "place",
        "places",
        "write",
    )

    def __init__(self, group: Group | None, node: Node | None) -> None:
        self.group = group
        self.node = node
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []
        self.finish: list[Node] = []
        self.operands: list[View] = []  # of a library op
        self.epilogue: Epilogue | None = None  # of a product
        self.places: dict[Node, Place] = {}  # of a call: its results that lie in other arrays
        self.write: Node | None = None  # the written array whose block this kernel stores
        self.place = 0  # in the list in which kernels are found
        self.copies = False  # the old array stays, so that it is copied before
        self.after: list[Step] = []  # what must have read the old array by then


class CycleError(Exception):
    """Two kernels wait for each other: the plan must be made again with less sharing."""


def in_order(steps: list[Step], produced: Mapping[Node, Step], asked: Collection[Node]) -> list[Step]:
    """Return the steps, operands first; raise CycleError if two wait for each other.

    What was *asked* for comes in the order in which it was recorded, and the rest when it is needed: in a backward pass
    an activation then goes as soon as the gradients that need it are there.
    """
    done: set[int] = set()
    begun: set[int] = set()
    out: list[Step] = []

    def late(step: Step) -> tuple[bool, int]:
        number = 0
        for n in step.outputs:
            if n in asked and (not number or n.number < number):
                number = n.number
        return not number, number or step.outputs[0].number

    stack = sorted(steps, key=late, reverse=True)
    while stack:
        step = stack[-1]
        if id(step) in done:
            stack.pop()
            continue
        waiting = [s for n in step.inputs if n.storage is None and id(s := produced[n]) not in done and s is not step]
        waiting += [s for s in step.after if id(s) not in done]
        if waiting:
            begun.add(id(step))
            if any(id(s) in begun for s in waiting):
                raise CycleError
            stack += waiting
            continue
        stack.pop()
        done.add(id(step))
        out.append(step)
    return out
