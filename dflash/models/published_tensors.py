"""The tensors of a published drafter: 11 for each layer, three more, no embedding, no head, no prefix.

The table is written out rather than taken from our module, so that a change of the module that servers
could not load is found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dflash.errors import UsageError
from dflash.models.shape import DrafterShape

Shape = tuple[int, ...]

_NAMED = 4
"""Keys that a message names before it counts."""


def published_shapes(shape: DrafterShape) -> dict[str, Shape]:
    """Every key with its shape, as in the released checkpoints."""
    hidden, wide = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer: dict[str, Shape] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (shape.head_dim,),
        "self_attn.k_norm": (shape.head_dim,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    return {
        "fc.weight": (hidden, len(shape.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        **{f"layers.{i}.{name}.weight": size for i in range(shape.layers) for name, size in layer.items()},
        "norm.weight": (hidden,),
    }


def check_shapes(found: Mapping[str, Shape], shape: DrafterShape) -> None:
    """Servers skip what they do not know and leave at random what they do not find, without a word.

    Raises:
        UsageError: keys are missing, too many or misshapen; the message names them.
    """
    expected = published_shapes(shape)
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    misshapen = [
        f"{name} is {list(found[name])}, not {list(size)}"
        for name, size in expected.items()
        if name in found and found[name] != size
    ]
    complaints = [("missing", missing), ("not a drafter's", extra), ("misshapen", misshapen)]
    wrong = [f"{len(names)} {what}: {listed(names)}" for what, names in complaints if names]
    if wrong:
        raise UsageError(f"not the {len(expected)} tensors that config.json asks for; {'; '.join(wrong)}")


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
