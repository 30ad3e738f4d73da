"""Strategies and their options as one text: `random,bucketed:buckets=16`."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dflash.errors import UsageError

if TYPE_CHECKING:
    from dflash.batching.plan import Strategy

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """An option of a strategy, as text."""

    name: str
    type: str
    default: str


def parse_strategies(text: str) -> list[tuple[str, str]]:
    """Names and option texts of `name[:option=value...],...`, in order; raises UsageError if one is empty."""
    items = [item.strip() for item in text.split(",")]
    pairs = [(name.strip(), options) for name, _, options in (item.partition(":") for item in items)]
    if not all(name for name, _ in pairs):
        raise UsageError(f"empty strategy name in {text!r}: write NAME[:OPTION=VALUE...][,NAME...]")
    return pairs


def describe(strategy: type) -> tuple[Option, ...]:
    """The options of a strategy: the fields of its dataclass."""
    hints = get_type_hints(strategy)
    return tuple(
        Option(field.name, _type_text(hints[field.name]), _value_text(_default(field)))
        for field in fields(strategy)
    )


def build(name: str, strategy: type[Strategy], text: str) -> Strategy:
    """A strategy with the options `option=value:option=value` of `text`; raises as `construct` does."""
    return construct(f"strategy {name!r}", strategy, text)


def construct(what: str, cls: type[T], text: str) -> T:
    """An instance of a dataclass, its fields given as `field=value:field=value`. what: for errors.

    Raises UsageError, naming what exists or what is expected, for an unknown, repeated or ill-typed option
    and for values that the class itself refuses.
    """
    import msgspec  # only options need it

    hints = get_type_hints(cls)
    known = [option.name for option in describe(cls)]
    values: dict[str, Any] = {}
    for item in text.split(":") if text.strip() else ():
        option, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise UsageError(f"{what}: {item.strip()!r} is not OPTION=VALUE")
        if option not in known:
            raise UsageError(f"{what} has no option {option!r}; it has {', '.join(known) or 'none'}")
        if option in values:
            raise UsageError(f"{what}: option {option!r} is given twice")
        try:
            values[option] = msgspec.convert(value, type=hints[option], strict=False)
        except msgspec.ValidationError:
            expected = _type_text(hints[option])
            raise UsageError(f"{what}: {option}={value}: expected {expected}") from None
    try:
        return cls(**values)
    except (ValueError, UsageError) as error:
        raise UsageError(f"{what}: {error}") from error


def canonical(name: str, strategy: Any) -> str:
    """The name and the options that are not at their default: `build` makes the same strategy from it."""
    changed = [
        f":{field.name}={_value_text(value)}"
        for field in fields(strategy)
        if (value := getattr(strategy, field.name)) != _default(field)
    ]
    return name + "".join(changed)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _type_text(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "|".join(_value_text(value) for value in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return "|".join(_type_text(part) for part in get_args(hint))
    if hint is NoneType:
        return "null"
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _value_text(value: Any) -> str:
    """As msgspec reads it back."""
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
