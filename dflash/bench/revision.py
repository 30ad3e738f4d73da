"""Another revision of the code, to be measured in the same job: a git worktree in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dflash.bench.results import Revision
from dflash.errors import UsageError


@dataclass(frozen=True)
class Checkout:
    """One side of a comparison of revisions: the commit, and the folders that its code is imported from."""

    revision: Revision
    roots: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """Of a process that is to run this code: its folders come before all others on the path."""
        before = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": os.pathsep.join([*map(str, self.roots), *([before] if before else [])])}


def current() -> Revision | None:
    """The commit of the working directory and whether it has changes; None where there is no repository."""
    try:
        return Revision(commit=_git("rev-parse", "HEAD"), dirty=bool(_git("status", "--porcelain")))
    except UsageError:
        return None


def resolve(name: str) -> str:
    """The commit that ``name`` means; UsageError if it means none here."""
    try:
        return _git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except UsageError:
        raise UsageError(
            f"--against {name!r}: no such commit in this repository; in CI, fetch the whole history"
        ) from None


@contextmanager
def checkouts(name: str, packages: Iterable[str]) -> Iterator[tuple[Checkout, Checkout]]:
    """The tree as it is, and the one of revision ``name`` in a folder that exists until the block is left.

    ``packages`` are the names of the imported top-level packages whose code is compared. Those that come
    from this repository come from the worktree on the other side; libraries are the same on both.

    Raises:
        UsageError: no repository, no such revision, or none of the packages comes from it.
    """
    top = Path(_git("rev-parse", "--show-toplevel"))
    commit = resolve(name)
    roots = sorted({root for root in map(_root, packages) if root and _tracked(root, top)})
    if not roots:
        places = ", ".join(f"{package} from {_root(package)}" for package in packages)
        raise UsageError(
            f"--against {name}: none of the code comes from the repository {top} ({places}); install it "
            "from there with pip install -e"
        )
    folder = Path(tempfile.mkdtemp(prefix="dflash-against-"))
    tree = folder / "tree"
    try:
        # Without the hooks of the repository, which are made for people's checkouts.
        _git(
            "-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--detach", "--quiet", str(tree), commit
        )
        now = current() or Revision(commit=commit)
        yield (
            Checkout(now, tuple(roots)),
            Checkout(Revision(commit=commit), tuple(tree / root.relative_to(top) for root in roots)),
        )
    finally:
        _remove(tree, top)
        shutil.rmtree(folder, ignore_errors=True)


def _remove(tree: Path, top: Path) -> None:
    """Whatever `git worktree add` came to before it may have been interrupted."""
    with suppress(UsageError):
        _git("worktree", "remove", "--force", str(tree), cwd=top)
    shutil.rmtree(tree, ignore_errors=True)
    with suppress(UsageError):
        _git("worktree", "prune", cwd=top)


def _root(package: str) -> Path | None:
    """The folder from which an imported package comes."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None:
        return None
    place = Path(file).resolve()
    return place.parent.parent if place.name == "__init__.py" else place.parent


def _tracked(root: Path, top: Path) -> bool:
    """Whether git knows files of the folder: an environment inside the repository is not its code."""
    if not root.is_relative_to(top):
        return False
    return bool(_git("ls-files", "--", str(root), cwd=top))


def _git(*arguments: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            process_group=0,  # Ctrl-C is for us to handle, and a worktree half made or removed helps nobody
        )
    except FileNotFoundError:
        raise UsageError("git is not installed, which comparing revisions needs") from None
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise UsageError(f"git {arguments[0]}: {words[-1]}") from None
    return done.stdout.strip()
