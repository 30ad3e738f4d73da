from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.batching.options import Option, build, canonical, construct, describe, parse_strategies
from dflash.errors import UsageError


@dataclass(frozen=True)
class Example:
    buckets: int = 8
    ratio: float = 0.5
    frozen: bool = False
    order: Literal["length", "shuffled"] = "length"
    limit: int | None = None
    tag: str = field(default_factory=lambda: "none")

    def __post_init__(self) -> None:
        if self.buckets < 1:
            raise ValueError(f"buckets={self.buckets}: expected at least 1")

    def plan(self, lengths: Any, request: Any) -> Any: ...


def made(text: str) -> dict[str, Any]:
    return asdict(build("example", Example, text))  # type: ignore[call-overload, no-any-return]


def test_names_and_option_texts() -> None:
    assert parse_strategies("random,bucketed:buckets=8:boundaries=optimal") == [
        ("random", ""),
        ("bucketed", "buckets=8:boundaries=optimal"),
    ]
    assert parse_strategies(" random , dist/bucketed :buckets=8 ") == [
        ("random", ""),
        ("dist/bucketed", "buckets=8"),
    ]


@pytest.mark.parametrize("text", ["", " ", ",,", "random,", ",random", "random,,sorted", ":buckets=8"])
def test_an_empty_item_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="empty strategy name"):
        parse_strategies(text)


def test_values_take_the_type_of_their_field() -> None:
    defaults = asdict(Example())
    assert made("") == defaults
    assert made("buckets=16:frozen=true") == {**defaults, "buckets": 16, "frozen": True}
    assert made(" ratio = 1e-3 : limit=4 ") == {**defaults, "ratio": 0.001, "limit": 4}
    assert made("limit=null:order=shuffled:tag=7") == {**defaults, "order": "shuffled", "tag": "7"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("buckets=many", "example': buckets=many: expected int"),
        ("buckets=1.5", "buckets=1.5: expected int"),
        ("buckets=", "buckets=: expected int"),
        ("frozen=maybe", "frozen=maybe: expected bool"),
        ("order=size", r"order=size: expected length\|shuffled"),
        ("limit=x", r"limit=x: expected int\|null"),
        ("bucket=3", "has no option 'bucket'; it has buckets, ratio, frozen, order, limit, tag"),
        ("buckets", "'buckets' is not OPTION=VALUE"),
        ("buckets=3:", "'' is not OPTION=VALUE"),
        ("buckets=3:buckets=4", "'buckets' is given twice"),
        ("buckets=0", "'example': buckets=0: expected at least 1"),
    ],
)
def test_a_wrong_option_says_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(text)


def test_errors_name_what_is_built() -> None:
    assert construct("thing", Example, "buckets=3") == Example(buckets=3)
    with pytest.raises(UsageError, match=r"^thing: buckets=x: expected int"):
        construct("thing", Example, "buckets=x")


def test_listed_options() -> None:
    assert describe(Example) == (
        Option("buckets", "int", "8"),
        Option("ratio", "float", "0.5"),
        Option("frozen", "bool", "false"),
        Option("order", "length|shuffled", "length"),
        Option("limit", "int|null", "null"),
        Option("tag", "str", "none"),
    )


def test_the_name_shows_what_is_not_default() -> None:
    assert canonical("example", Example()) == "example"
    assert canonical("example", Example(buckets=16, frozen=True)) == "example:buckets=16:frozen=true"
    assert canonical("example", build("example", Example, "buckets=8:order=length")) == "example"


@settings(deadline=None)
@given(
    st.builds(
        Example,
        buckets=st.integers(1, 100),
        ratio=st.floats(allow_nan=False),
        frozen=st.booleans(),
        order=st.sampled_from(["length", "shuffled"]),
        limit=st.none() | st.integers(),
        tag=st.text("abcxyz0.-_", min_size=1),
    )
)
def test_the_name_makes_the_same_strategy_again(example: Example) -> None:
    if example.limit is not None and abs(example.limit) >= 2**63:
        return
    ((name, text),) = parse_strategies(canonical("example", example))
    assert build(name, Example, text) == example
