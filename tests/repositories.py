"""Git repositories for tests: whatever the person who runs them has configured."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_NOBODY = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(folder: Path, *arguments: str) -> str:
    """What git prints."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | _NOBODY, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path) -> str:
    """Everything in ``folder`` as a commit, in a repository that is made if need be."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all", "--allow-empty")
    return git(folder, "rev-parse", "HEAD")
