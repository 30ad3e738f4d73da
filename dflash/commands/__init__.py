"""The subcommands of ``dflash``, one module each. What they need is imported when they run."""
