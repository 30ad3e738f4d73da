"""dflash trains DFlash drafters and measures what batching strategies cost in speed and in learning."""

__version__ = "0.1.0"
