"""A new package with one strategy, ready to install, test and publish."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from dflash.errors import UsageError
from dflash.hookspecs import ALL

_SUFFIX = ".template"


def scaffold(name: str, folder: Path | None = None) -> Path:
    """Write the package of strategy `name` into `folder`, new or empty; return the folder.

    The folder is dflash-strategy-NAME if None. Raises UsageError for a name that no strategy may have and
    for a folder that cannot be written or is not empty.
    """
    if not re.fullmatch(r"[a-z]([a-z0-9_-]*[a-z0-9])?", name) or name == ALL:
        raise UsageError(f"strategy name {name!r}: use a-z, 0-9, - and _, a letter first and no sign last")
    plain = name.replace("-", "_")
    words = {
        "name": name,
        "distribution": f"dflash-strategy-{name}",
        "package": f"dflash_strategy_{plain}",
        "class_name": "".join(part.capitalize() for part in plain.split("_")),
    }
    folder = Path(words["distribution"]) if folder is None else folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty: name another folder with --dir")
        _write(resources.files("dflash.testing") / "template", folder, words)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}; name another folder with --dir") from None
    return folder


def _write(template: Traversable, folder: Path, words: dict[str, str]) -> None:
    for source in template.iterdir():
        name = words["package"] if source.name == "package" else source.name.removesuffix(_SUFFIX)
        if source.is_dir():
            (folder / name).mkdir()
            _write(source, folder / name, words)
        else:
            text = Template(source.read_text(encoding="utf-8")).substitute(words)
            (folder / name).write_text(text, encoding="utf-8")
