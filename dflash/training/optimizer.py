"""AdamW with a cosine schedule after a linear warm-up, and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from dflash.config import OptimizerSettings
from dflash.errors import NonFiniteError


def schedule_factor(step: int, total: int, warmup: float, final: float) -> float:
    """Learning rate at optimizer step ``step`` of ``total``, as a share of its peak.

    Rises linearly over the first ``warmup * total`` steps (at least one), then falls as a half cosine to
    ``final``, and stays there.
    """
    rise = max(1, round(warmup * total))
    if step < rise:
        return (step + 1) / rise
    progress = min(1.0, (step - rise) / max(1, total - rise))
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


class Optimizer:
    """One optimizer step per window, on gradients that are still sums over the window's labels."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], settings: OptimizerSettings, total_windows: int
    ) -> None:
        self._parameters = list(parameters)
        self._settings = settings
        self._total = total_windows
        self._window = 0
        matrices = [weight for weight in self._parameters if weight.ndim > 1]
        vectors = [weight for weight in self._parameters if weight.ndim <= 1]
        self._adam = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
        )

    @property
    def learning_rate(self) -> float:
        """Of the window at hand."""
        settings = self._settings
        share = schedule_factor(
            self._window, self._total, settings.warmup, settings.final_learning_rate_share
        )
        return settings.learning_rate * share

    def state(self, names: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        """The moments and step counts as ``KIND.NAME``, of the parameters that have any; not copied."""
        return {
            f"{kind}.{name}": tensor
            for name, parameter in names.items()
            for kind, tensor in self._adam.state.get(parameter, {}).items()
        }

    def restore(self, names: Mapping[str, nn.Parameter], state: Mapping[str, Tensor], window: int) -> None:
        """Go on after ``window`` windows with what :meth:`state` gave then."""
        self._window = window
        for name, parameter in names.items():
            kinds = ("step", "exp_avg", "exp_avg_sq")
            own = {kind: state[f"{kind}.{name}"] for kind in kinds if f"{kind}.{name}" in state}
            if own:
                # AdamW keeps its step counts on the CPU, whatever device the weights are on.
                self._adam.state[parameter] = {
                    kind: value.clone() if kind == "step" else value.to(parameter.device, copy=True)
                    for kind, value in own.items()
                }

    def commit(self, weight: float) -> float:
        """Divide the gradient sums by the window's weight, clip, step; return the norm before clipping.

        A window of weight zero takes no step; the schedule advances all the same, on every rank alike.

        Raises:
            NonFiniteError: the gradient, or a weight after the step, is not finite.
        """
        norm = self._step(weight) if weight > 0 else 0.0
        self._adam.zero_grad(set_to_none=True)
        self._window += 1
        return norm

    def _step(self, weight: float) -> float:
        grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_div_(grads, weight)
        norm = nn.utils.clip_grad_norm_(self._parameters, self._settings.clip_norm).item()
        if not math.isfinite(norm):
            raise NonFiniteError("the gradient norm is not finite")
        for group in self._adam.param_groups:
            group["lr"] = self.learning_rate
        self._adam.step()
        sums: list[Tensor] = [parameter.detach().sum() for parameter in self._parameters]
        if not bool(torch.isfinite(torch.stack(sums)).all()):
            raise NonFiniteError("a weight of the drafter is not finite after the optimizer step")
        return norm
