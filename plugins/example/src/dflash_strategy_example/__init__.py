"""The batching strategy example for dflash."""
