"""Batching: from the samples' lengths alone to one epoch's plan, with a proof that it is right.

No torch, no input or output, and no randomness but that of the request's seed.
"""
