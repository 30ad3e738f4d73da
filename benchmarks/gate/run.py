"""The project's own gate, as `tox -e gate` runs it; `--exact` leaves out all that needs a clock.

First the plans of every built-in strategy against baseline.json. Then, where there is a merge base that the
code differs from, the speed of one strategy against it, both measured in this job. DFLASH_GATE_BASE names
another branch than the remote's main one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = "benchmarks/gate/gate.toml"
CODE = ("dflash", "plugins")
BRANCHES = ("origin/HEAD", "origin/main", "main")


def main() -> int:
    """The exit code of the exact part, or of the paired one if that is the first to fail."""
    code = bench("plan")
    if code or "--exact" in sys.argv[1:]:
        return code
    base = merge_base()
    if base is None:
        print("gate: no merge base here, so there is no speed to compare with", flush=True)
        return code
    if not differs(base):
        print(f"gate: the code is that of the merge base {base}, so its speed is not measured", flush=True)
        return code
    return bench("run", "--against", base)


def bench(*arguments: str) -> int:
    """Run dflash-bench with the gate's settings; its exit code."""
    command = [str(Path(sys.executable).with_name("dflash-bench")), *arguments, "--config", SETTINGS]
    print("gate:", *command[1:], flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def merge_base() -> str | None:
    """The commit at which this branch left the main one, abbreviated; None if git knows none."""
    named = os.environ.get("DFLASH_GATE_BASE")
    for branch in (named,) if named else BRANCHES:
        found = git("merge-base", "HEAD", branch)
        if found is not None:
            return found[:12]
    return None


def differs(base: str) -> bool:
    """Whether the code here, changes that are not committed included, is another than the commit's."""
    return bool(git("diff", "--name-only", base, "--", *CODE)) or bool(
        git("ls-files", "--others", "--exclude-standard", "--", *CODE)
    )


def git(*arguments: str) -> str | None:
    """What git prints; None if it fails or is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
