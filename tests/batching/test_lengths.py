from __future__ import annotations

import numpy as np
import pytest

from dflash.batching.lengths import parse_lengths
from dflash.errors import UsageError


def test_the_reference_lengths() -> None:
    """As the real run's: 902,087 samples of 65..8,191 tokens, 1.936e9 in all, 74% in 1,024..4,096."""
    lengths = parse_lengths("lognormal:median=1800:sigma=0.6:min=65:max=8191:n=902087")
    assert lengths.dtype == np.int64
    assert len(lengths) == 902_087
    assert lengths.min() >= 65
    assert lengths.max() == 8_191
    assert np.median(lengths) == pytest.approx(1_800, rel=0.003)
    assert lengths.sum() == pytest.approx(1.936e9, rel=0.002)
    assert np.mean((lengths >= 1_024) & (lengths <= 4_096)) == pytest.approx(0.74, abs=0.005)
    assert (lengths == parse_lengths("lognormal")).all()


def test_always_the_same_draws() -> None:
    normal = np.random.Generator(np.random.PCG64(0)).normal(np.log(50), 0.3, 20)
    expected = [min(max(int(np.exp(value)), 40), 60) for value in normal]
    assert parse_lengths("lognormal:median=50:sigma=0.3:min=40:max=60:n=20").tolist() == expected


def test_extreme_shapes() -> None:
    assert parse_lengths("lognormal:n=0").tolist() == []
    assert set(parse_lengths("lognormal:median=7:sigma=0:min=1:n=5").tolist()) <= {6, 7}
    assert set(parse_lengths("lognormal:sigma=1e6:n=40").tolist()) == {65, 8_191}  # no overflow


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^lengths '': expected lognormal:median="),
        ("normal:n=5", "lengths 'normal:n=5': expected lognormal:"),
        ("lognormal:size=5", "has no option 'size'; it has median, sigma, min, max, n"),
        ("lognormal:n=many", "n=many: expected int"),
        ("lognormal:n=-1", "n=-1: expected an integer from 0 to 1000000000"),
        ("lognormal:n=1.5", "n=1.5: expected int"),
        ("lognormal:n=9999999999", "n=9999999999: expected"),
        ("lognormal:median=0", "median=0.0: expected a number above 0"),
        ("lognormal:median=nan", "median=nan: expected a number above 0"),
        ("lognormal:sigma=inf", "sigma=inf: expected a number of at least 0"),
        ("lognormal:min=0", "min=0, max=8191: expected 1 <= min <= max"),
        ("lognormal:min=9:max=8", "min=9, max=8: expected 1 <= min <= max"),
        ("lognormal:max=2147483648", "expected 1 <= min <= max <= 2147483647"),
    ],
)
def test_what_is_no_distribution_says_why(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse_lengths(text)
    assert "\n" not in str(raised.value)
