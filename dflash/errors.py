"""The few kinds of error that dflash raises on purpose, and the exit code that each one means.

A message is one line: what is wrong, where (file, row, option, sample id, worker), and the way out.
Everything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of both commands. Precedence when several apply: 130, 2, 3, 1, 5, 4."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    TRIAL_FAILED = 3
    INCONCLUSIVE = 4
    NOTHING_MEASURED = 5
    INTERRUPTED = 130


class DflashError(Exception):
    """Base of every error that a user can cause or mend."""

    exit_code = ExitCode.TRIAL_FAILED


class UsageError(DflashError):
    """A wrong option, setting, file or name: nothing has been run."""

    exit_code = ExitCode.USAGE


class PlanError(UsageError):
    """A strategy cannot plan these lengths, or returned a plan that breaks a rule of the contract.

    Exit code 2 where the plan is asked for; a trial that meets it reports a failed trial (3).
    """


class PluginError(UsageError):
    """A plugin cannot be imported, claims a name that another one has, or does not exist."""


class NoBaselineError(DflashError):
    """There is nothing that a gate could compare with: nothing has been run."""

    exit_code = ExitCode.NOTHING_MEASURED


class StageError(DflashError):
    """A pipeline stage failed; ``__cause__`` is the first exception, the message names the stage."""


class NonFiniteError(DflashError):
    """A loss, gradient, weight or too many samples' features were not finite."""


class TrialError(DflashError):
    """A trial crashed, was incomplete, or broke a rule that makes its numbers meaningless."""
