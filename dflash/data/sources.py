"""Where a run's data and target are: paths, or the sample that comes with dflash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dflash.config import DataSettings
from dflash.data.sample import prepare_sample, sample_target_dir
from dflash.data.store import TokenStore


def open_store(settings: DataSettings, progress: Callable[[str], None] | None = None) -> TokenStore:
    """The token store of the settings; the sample is prepared where it does not exist yet.

    ``progress`` is given lines for a person while that goes on.

    Raises:
        UsageError: there is no whole store at the path.
    """
    return TokenStore.open(prepare_sample(progress) if settings.store == "sample" else Path(settings.store))


def target_folder(settings: DataSettings) -> Path:
    """The folder of the settings' target."""
    return sample_target_dir() if settings.target == "sample" else Path(settings.target)
