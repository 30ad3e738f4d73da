"""A machine as a small TOML file: what it can do, and where each figure comes from."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from dflash.errors import UsageError

_FOLDER = "profiles"
THIS_MACHINE = "cpu-this"
"""the profile that `dflash-bench calibrate` writes unless it is told another name"""

Source = Annotated[str, msgspec.Meta(min_length=1)]


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number above zero in SI base units, and who says so."""

    value: Annotated[float, msgspec.Meta(gt=0)]
    source: Source


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device's rates, from which any model's seconds follow. Every worker has a device of its own."""

    peak_flops: Figure
    """bf16 with fp32 accumulation, dense, per second"""
    efficiency: Figure
    """share of the peak that a target's whole forward pass reaches, attention apart"""
    training_efficiency: Figure
    """share of the peak that a drafter's forward and backward pass reaches, attention apart"""
    attention_efficiency: Figure
    """share of the peak that fused causal attention reaches, counting the lower half of the square"""
    memory_bytes: Figure
    memory_bandwidth: Figure
    host_copy_bandwidth: Figure
    """bytes per second, one way, between a device and pinned memory"""
    reduce_latency: Figure
    reduce_bandwidth: Figure
    """of a ring all-reduce between the devices, bytes per second and direction"""
    drafter_overhead: Figure
    error: Figure
    """relative error of a predicted rate"""


class Fitted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coefficients of a stage, measured, and their error on micro-batches that they were not fitted to."""

    coefficients: list[Annotated[float, msgspec.Meta(ge=0)]]
    leave_one_out: Annotated[float, msgspec.Meta(ge=0)]
    """root mean square of the relative errors"""
    largest_error: Annotated[float, msgspec.Meta(ge=0)]
    source: Source


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model's seconds on one machine."""

    sizes: str
    """fingerprint of the models that were measured; their figures hold for no other"""
    cores: int | None = None
    """that all workers share; None where each has a device of its own"""
    supervised_share: float
    """of a sample's tokens, in the store that was measured with"""
    label_share: float
    """of the block slots that have a token, those whose token is supervised"""
    target_padded: Fitted
    target_packed: Fitted
    drafter: Fitted
    load: Fitted
    optimizer_seconds: Figure
    copy_bandwidth: Figure
    target_slowdown: Figure
    drafter_slowdown: Figure

    def __post_init__(self) -> None:
        for name, count in (("target_padded", 3), ("target_packed", 3), ("drafter", 5), ("load", 2)):
            found = len(getattr(self, name).coefficients)
            if found != count:
                raise ValueError(f"{name} has {found} coefficients, expected {count}")
        if self.cores is not None and self.cores < 1:
            raise ValueError(f"cores is {self.cores}, expected at least 1")


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A machine: its rates, or what was measured on it."""

    name: str
    summary: str
    rates: Rates | None = None
    measured: Measured | None = None

    def __post_init__(self) -> None:
        if (self.rates is None) == (self.measured is None):
            raise ValueError("a profile has either rates or measured coefficients")


def user_folder() -> Path:
    """Where `calibrate` keeps profiles."""
    from platformdirs import user_config_path

    return user_config_path("dflash") / _FOLDER


def profiles() -> list[str]:
    """Names that :func:`load_profile` knows: those of dflash, then those of this user."""
    folder = resources.files("dflash.simulation").joinpath(_FOLDER)
    shipped = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    own = [one.name for one in user_folder().glob("*.toml")]
    names = [
        name.removesuffix(".toml") for name in (*sorted(shipped), *sorted(own)) if name.endswith(".toml")
    ]
    return list(dict.fromkeys(names))


def load_profile(name: str) -> Profile:
    """The profile of that name, this user's before dflash's own, or of a file `NAME.toml`.

    Raises:
        UsageError: there is none, or the file is not a profile.
    """
    shipped = resources.files("dflash.simulation").joinpath(_FOLDER, f"{name}.toml")
    own = user_folder() / f"{name}.toml"
    if name.endswith(".toml"):
        return parse_profile(_text(Path(name)), name)
    if own.is_file():
        return parse_profile(_text(own), str(own))
    if shipped.is_file():
        return parse_profile(shipped.read_text(), name)
    hint = f"; dflash-bench calibrate makes {THIS_MACHINE}" if name == THIS_MACHINE else ""
    known = ", ".join(profiles())
    raise UsageError(f"no hardware profile {name!r}: there are {known}, or give a FILE.toml{hint}")


def parse_profile(text: str, source: str) -> Profile:
    """A profile from TOML; UsageError, starting with ``source``, if it is not one."""
    try:
        return msgspec.convert(tomllib.loads(text), Profile)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {str(error).replace('$.', '')}") from error


def dump_profile(profile: Profile) -> str:
    """As TOML that :func:`parse_profile` reads back to an equal object."""
    import tomli_w

    values = msgspec.to_builtins(profile)
    measured = values.get("measured")
    if measured is not None and measured["cores"] is None:
        del measured["cores"]
    return tomli_w.dumps(values)


def save_profile(profile: Profile, path: Path | None = None) -> Path:
    """Write to ``path``, or under its name for this user; UsageError if that cannot be done."""
    path = path or user_folder() / f"{profile.name}.toml"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_profile(profile))
    except OSError as error:
        raise UsageError(f"cannot write the profile {path}: {error.strerror}") from error
    return path


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"cannot read the profile {path}: {reason}") from error
