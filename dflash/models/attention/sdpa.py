"""The same mask, given to torch's own kernel: what one would write first."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dflash.models.attention.reference import context_and_blocks


@dataclass(frozen=True)
class SdpaAttention:
    """A :class:`BlockAttention` on any device. Time and the mask are quadratic; no score is kept."""

    mask_QK: Tensor
    """from :func:`dflash.models.attention.reference.dense_mask`"""

    def __call__(
        self,
        q_NBHD: Tensor,
        context_key_TGD: Tensor,
        context_value_TGD: Tensor,
        key_NBGD: Tensor,
        value_NBGD: Tensor,
    ) -> Tensor:
        out_1HQD = scaled_dot_product_attention(
            q_NBHD.flatten(0, 1).transpose(0, 1)[None],
            context_and_blocks(context_key_TGD, key_NBGD)[None],
            context_and_blocks(context_value_TGD, value_NBGD)[None],
            self.mask_QK,
            enable_gqa=q_NBHD.shape[2] != key_NBGD.shape[2],
        )
        return out_1HQD[0].transpose(0, 1).reshape(q_NBHD.shape)
