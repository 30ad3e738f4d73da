"""What both commands share: one-line errors, exit codes, warnings without a traceback's look."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import click

from dflash.errors import DflashError, ExitCode


def run_command(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a click command and return its exit code, with errors as one line on stderr.

    ``--debug`` anywhere on the command line shows the traceback instead.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    warnings.showwarning = lambda message, *_: _say(name, "warning", str(message))
    # Foreign plugins and their dependencies warn about themselves, which helps no user of ours.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False, obj=debug)
        return int(code or 0)
    except click.exceptions.Abort:
        _say(name, "interrupted", "nothing was lost that is not named above")
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        _say(name, "interrupted", "stopped before there was anything to keep")
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        where = f" (see {name} --help)" if isinstance(error, click.UsageError) else ""
        _say(name, "error", f"{error.format_message()}{where}")
        return ExitCode.USAGE
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does. Nothing more can be said to it.
        sys.stderr.close()
        return ExitCode.OK
    except DflashError as error:
        if debug:
            raise
        _say(name, "error", str(error))
        return error.exit_code


def say(line: str) -> None:
    """A line for a person, on stderr, so that stdout stays what was asked for."""
    print(line, file=sys.stderr)


def _say(name: str, kind: str, text: str) -> None:
    say(f"{name}: {kind}: {' '.join(text.split())}")
