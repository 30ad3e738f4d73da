"""Attention of blocks: one rule of what a block sees, and four ways to compute it.

A block sees context strictly before its anchor and all of itself; no other block, no other document.
Strictly, because at decode time the target has not read the anchor yet. Every backend turns the places of
a chunk's blocks into a :class:`BlockAttention` once, which all layers of the drafter then call:

- :mod:`reference`: one dense mask and a plain softmax; obvious, slow, what the others are held against.
- :mod:`sdpa`: the same mask given to torch's own kernel.
- :mod:`grouped`: no mask; blocks that see about as much run as one batch. The fast path on a CPU.
- :mod:`flex`: a compiled kernel that skips what is hidden. CUDA only.
"""

from dflash.models.attention.backends import BlockAttention, backend_for, prepare_attention
from dflash.models.attention.grouped import group_blocks

__all__ = ["BlockAttention", "backend_for", "group_blocks", "prepare_attention"]
