"""The subcommands of ``dflash-bench``, one module each or one for what belongs together."""
