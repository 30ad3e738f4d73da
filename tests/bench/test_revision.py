from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from repositories import commit, git

from dflash.bench import revision
from dflash.errors import UsageError


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository whose code is imported from a folder in it, with a change that is not committed."""
    folder = tmp_path / "repository"
    (folder / "src" / "toy").mkdir(parents=True)
    code = folder / "src" / "toy" / "__init__.py"
    code.write_text("SPEED = 1\n")
    (folder / ".gitignore").write_text("__pycache__/\nvenv/\n")
    commit(folder)
    code.write_text("SPEED = 22\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "src")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    __import__("toy")
    yield folder
    del sys.modules["toy"]


def speed(checkout: revision.Checkout) -> str:
    """What an interpreter of its own finds in the checkout's code."""
    done = subprocess.run(
        [sys.executable, "-c", "import toy; print(toy.SPEED)"],
        env=os.environ | checkout.environment(),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    return done.stdout.strip()


def test_both_sides_run_their_own_code_and_the_worktree_is_gone_afterwards(repository: Path) -> None:
    with revision.checkouts("HEAD", ["toy", "json"]) as (now, then):
        assert (speed(now), speed(then)) == ("22", "1")
        assert now.revision.dirty and not then.revision.dirty
        assert now.revision.commit == then.revision.commit == git(repository, "rev-parse", "HEAD")
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not list(repository.parent.glob("dflash-against-*"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_worktree_is_gone_after_an_interrupt_too(repository: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), revision.checkouts("HEAD", ["toy"]) as (_, then):
        (then.roots[0] / "left.txt").write_text("a file that nobody knows")
        raise error
    assert git(repository, "worktree", "list").count("\n") == 0
    assert not list(repository.parent.glob("dflash-against-*"))


def test_hooks_of_the_repository_do_not_run(repository: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {repository.parent}/hooked\n")
    hook.chmod(0o755)
    with revision.checkouts("HEAD", ["toy"]):
        pass
    assert not (repository.parent / "hooked").exists()


@pytest.mark.parametrize("name", ["nowhere", "--all", "HEAD~5", ""])
def test_what_is_no_commit_is_a_usage_error(repository: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no such commit"), revision.checkouts(name, ["toy"]):
        raise AssertionError
    assert not list(repository.parent.glob("dflash-against-*"))


def test_code_from_elsewhere_cannot_be_compared(repository: Path) -> None:
    """An environment inside the repository is not its code: git does not know it."""
    words = "none of the code comes from the repository"
    with pytest.raises(UsageError, match=words), revision.checkouts("HEAD", ["json"]):
        raise AssertionError


def test_outside_of_a_repository_there_is_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert revision.current() is None
    words = "git rev-parse: fatal: not a git repository"
    with pytest.raises(UsageError, match=words), revision.checkouts("HEAD", ["json"]):
        raise AssertionError
