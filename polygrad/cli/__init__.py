"""The commands: ``python -m polygrad devices | drivers | doctor | conformance | bench | new-driver``.

Here: the command line, and how a command that fails says so.
Not here: what each command does (a module each).

A command is a module with `add_arguments(parser)` and `run(arguments)`, which returns the exit code; its docstring is
its help.
"""

import argparse
from collections.abc import Sequence

from polygrad import __version__
from polygrad.cli import bench, conformance, devices, doctor, drivers, new_driver
from polygrad.commands import ended, parsed
from polygrad.driver.messages import sentence_of

COMMANDS = {
    "devices": devices,
    "drivers": drivers,
    "doctor": doctor,
    "conformance": conformance,
    "bench": bench,
    "new-driver": new_driver,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="polygrad", description="Arrays and gradients on any device.")
    parser.add_argument("--version", action="version", version=f"polygrad {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        text = module.__doc__ or ""
        command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=text.partition("\n\nHere:")[0],
            epilog=text.partition("\n\nExit code: ")[2] and "Exit code: " + text.partition("\n\nExit code: ")[2],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("-v", "--verbose", action="store_true", help="say more; show tracebacks")
        module.add_arguments(command)
        command.set_defaults(parser=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of *argv* (default: of the process) and return its exit code; 2 for a wrong command line."""
    arguments = parsed(_parser(), argv)
    command = COMMANDS[arguments.command]
    name = f"polygrad {arguments.command}"
    return ended(name, lambda: command.run(arguments), sentence_of, verbose=arguments.verbose)
