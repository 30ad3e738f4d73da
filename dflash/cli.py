"""The command ``dflash``: prepare data, train drafters, see what they are worth, hand them on."""

from __future__ import annotations

import sys

import click

import dflash
from dflash.command_line import run_command
from dflash.commands.doctor import doctor
from dflash.commands.evaluate import evaluate
from dflash.commands.export import export
from dflash.commands.prepare import prepare
from dflash.commands.train import train


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(dflash.__version__, "-V", "--version", prog_name="dflash")
def cli() -> None:
    """Train DFlash drafters: small block-diffusion models that make a large language model decode faster.

    To compare batching strategies before a long run, see dflash-bench --help.
    Any command takes --debug, which shows the traceback of an error.
    """


for command in (prepare, train, evaluate, export, doctor):
    cli.add_command(command)


def main() -> None:
    sys.exit(run_command(cli, "dflash"))
