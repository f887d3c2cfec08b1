"""A language model from text to samples, in three commands: ``python -m polygrad.gpt tokenize | train | generate``.

Here: the command line, and how a command that fails says so.
Not here: what each command does (a module each), the model (`polygrad.nn.GPT`), the loop (`polygrad.training`).

A command is a module with `add_arguments(parser)` and `run(arguments)`, which returns the exit code; its docstring is
its help. Exit codes: 0 done, 1 it failed, 2 the command line is wrong, 130 interrupted.
"""

import argparse
from collections.abc import Sequence

from polygrad.commands import ended, of_file, parsed
from polygrad.driver.messages import sentence_of
from polygrad.errors import PolygradError
from polygrad.gpt import generate, tokenize, train

COMMANDS = {"tokenize": tokenize, "train": train, "generate": generate}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m polygrad.gpt", description="Tokens of text, a model trained on them, and text from the model."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        text = module.__doc__ or ""
        command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=text.partition("\n\nHere:")[0],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("-v", "--verbose", action="store_true", help="show the traceback of a failure")
        module.add_arguments(command)
        command.set_defaults(parser=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of *argv* (default: of the process) and return its exit code."""
    try:
        arguments = parsed(_parser(), argv)
    except SystemExit as end:  # argparse has said what is wrong, or has given help
        return int(end.code or 0)
    command = COMMANDS[arguments.command]
    name = f"polygrad.gpt {arguments.command}"
    return ended(name, lambda: command.run(arguments), _said, verbose=arguments.verbose)


def _said(error: Exception) -> str:
    """Return an error as one sentence."""
    text = of_file(error) or " ".join(str(error).split())
    return text if text and isinstance(error, (PolygradError, OSError)) else sentence_of(error)
