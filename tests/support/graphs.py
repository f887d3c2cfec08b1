"""Graphs as tests look at them.

Here: the nodes that a graph is made of. Not here: tests.
"""


def ancestors(nodes):
    """Return *nodes* and all that they come from."""
    seen, stack = set(), list(nodes)
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack += n.parents
    return seen
