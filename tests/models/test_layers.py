from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

from dflash.models.layers import Linear, RMSNorm, rope, rotate


@pytest.mark.parametrize("theta", [10_000.0, 1e6])
def test_rotation_is_transformers(theta):
    """Bit by bit where the angles are small, as both are fp32."""
    config = Qwen3Config(head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": theta})
    positions = torch.arange(200)
    x_ThD = torch.randn(200, 3, 16)
    cos, sin = Qwen3RotaryEmbedding(config)(x_ThD, positions[None])
    expected, _ = apply_rotary_pos_emb(x_ThD.transpose(0, 1)[None], x_ThD.transpose(0, 1)[None], cos, sin)
    found = rotate(x_ThD, rope(positions, 16, theta, torch.float32))
    torch.testing.assert_close(found.transpose(0, 1)[None], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("size", "theta"), [(128, 1e6), (64, 10_000.0), (16, 10_000.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_angles_are_exact_at_long_positions(size, theta, dtype):
    """Frequencies or cosines rounded to half precision would be off by more: whole turns, or 2e-3."""
    positions = torch.tensor([0, 1, 4_095, 30_000])
    cos, sin = rope(positions, size, theta, dtype)
    angle = positions[:, None].double() * theta ** (-torch.arange(0, size, 2).double() / size)
    for found, exact in [(cos, angle.cos()), (sin, angle.sin())]:
        assert (found[:, 0].double() - torch.cat([exact, exact], 1)).abs().max() < 1e-3


def test_angles_are_fp64_where_the_rest_is():
    cos, _ = rope(torch.tensor([30_000]), 8, 10_000.0, torch.float64)
    assert cos.dtype == torch.float64


def test_a_product_in_half_precision_has_a_gradient_in_the_weights_own():
    linear = Linear(5, 3)
    exact = linear(x := torch.randn(7, 5))
    torch.testing.assert_close(exact, functional.linear(x, linear.weight), rtol=0, atol=0)
    linear.compute_dtype = torch.bfloat16
    out = linear(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0.02, atol=0.02)
    out.float().sum().backward()
    assert linear.weight.grad.dtype == torch.float32
    torch.testing.assert_close(linear.weight.grad, x.sum(0).expand(3, 5), rtol=0.02, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_norm_is_exact_whatever_comes_in(dtype):
    norm = RMSNorm(6, eps=1e-6).to(dtype)
    torch.nn.init.uniform_(norm.weight)
    x = torch.randn(4, 6).to(dtype)
    wide, weight = x.double(), norm.weight.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    found = norm(x)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
