"""``python -m dflash`` is the command ``dflash``."""

from dflash.cli import main

main()
