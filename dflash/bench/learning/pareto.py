"""Speed against the design effect: which strategies there is a reason to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash.bench.learning.design_effect import Estimate

LIKE_RANDOM = (0.8, 1.25)
"""A design effect whose bounds lie within is as good as 1."""


@dataclass(frozen=True)
class Place:
    """A strategy's speed, over any common reference, and its design effect."""

    speed: float
    effect: Estimate


def dominated(places: Mapping[str, Place]) -> dict[str, str]:
    """The strategies that another one beats, with the fastest that does.

    It is faster, and its gradients are no noisier: its design effect is as good as 1, or not above the
    other's.
    """
    found = {}
    for name, place in places.items():
        better = [
            other
            for other in places
            if places[other].speed > place.speed and _noise(places[other]) <= max(1.0, _noise(place))
        ]
        if better:
            found[name] = max(better, key=lambda other: places[other].speed)
    return found


def _noise(place: Place) -> float:
    return 1.0 if is_like_random(place.effect) else place.effect.value


def is_like_random(effect: Estimate) -> bool:
    """Whether the bounds exclude that it is worse or better than random by the margin."""
    low, high = effect.low, effect.high
    return low is not None and high is not None and LIKE_RANDOM[0] <= low and high <= LIKE_RANDOM[1]
