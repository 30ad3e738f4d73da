"""Trials in interpreters of their own: the code of the checkout, an answer or a reason, nobody left."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dflash
from dflash.bench.exchange import Failure, Measurement, TrialRequest
from dflash.bench.exec_launcher import ExecLauncher
from dflash.bench.results import Plugin, Revision
from dflash.bench.revision import Checkout
from dflash.config import Config
from dflash.errors import UsageError

HERE = Path(dflash.__file__).parents[1]

FAKE = """
import os, signal, sys, time
from dataclasses import dataclass, field

@dataclass
class TrialRequest:
    strategy: str
    config: object
    warmup: int
    windows: int

@dataclass
class Measurement:
    metrics: dict
    losses: list
    plan_digest: str = "d"
    windows_per_epoch: int = 1
    stages: dict = field(default_factory=dict)
    bottleneck: str = "target"
    steal_seconds: float = 0.0
    load: float = 0.0
    gone: int = 3
"""


@pytest.fixture
def other(tmp_path: Path) -> Callable[[str], Checkout]:
    """A revision whose trial is ``body``, with fewer and with other fields than this one's."""

    def made(body: str) -> Checkout:
        bench = tmp_path / "dflash" / "bench"
        bench.mkdir(parents=True)
        (tmp_path / "dflash" / "__init__.py").touch()
        (bench / "__init__.py").touch()
        (bench / "exchange.py").write_text(FAKE)
        (bench / "trial.py").write_text(
            "import os, signal, sys, time, torch\nfrom dflash.bench.exchange import Measurement\n"
            f"def measure_trial(request):\n    {body}\n"
        )
        for name in ("errors.py", "config.py"):
            (tmp_path / "dflash" / name).write_text((HERE / "dflash" / name).read_text())
        config = tmp_path / "dflash" / "config.py"
        config.write_text(config.read_text().replace("    watchdog_seconds: Positive = 600.0\n", ""))
        return Checkout(Revision(commit="c0ffee"), (tmp_path,))

    return made


def request(**settings: object) -> TrialRequest:
    from msgspec.structs import replace

    config = Config()
    return TrialRequest("x", replace(config, pipeline=replace(config.pipeline, **settings)), 2, 4, ("no",))


def test_each_side_passes_over_what_it_does_not_know(other: Callable[[str], Checkout]) -> None:
    facts = (
        "{'tok_s': float(torch.get_num_threads()), 'gone': 1.0, 'padding_efficiency': request.windows / 4}"
    )
    with ExecLauncher(other(f"return Measurement({facts}, [float('nan'), None])")) as launcher:
        answer = launcher.run(request())
        assert isinstance(answer, Measurement)
        assert answer.metrics == {"tok_s": 1.0, "padding_efficiency": 1.0}
        assert answer.losses[0] != answer.losses[0] and answer.losses[1] is None, "NaN is not null"
        assert (answer.windows, answer.machine) == ([], None)
        changed = launcher.run(request(watchdog_seconds=5.0))
    assert isinstance(changed, Failure)
    assert changed.message == "this revision has no setting pipeline.watchdog_seconds, which is set to 5.0"


def test_failure_and_death_are_one_line(other: Callable[[str], Checkout]) -> None:
    fail = "if request.windows == 4: raise ValueError('no way')"
    with ExecLauncher(other(f"{fail}\n    os.kill(os.getpid(), signal.SIGKILL)")) as launcher:
        failed = launcher.run(request())
        assert isinstance(failed, Failure)
        assert failed.message == "ValueError: no way" and "in measure_trial" in failed.traceback
        died = launcher.run(dataclasses.replace(request(), windows=5))
        assert isinstance(died, Failure)
        assert "SIGKILL" in died.message


def test_an_interrupt_ends_the_process_at_hand(other: Callable[[str], Checkout], tmp_path: Path) -> None:
    marker = tmp_path / "pid"

    def interrupt() -> None:
        while not (marker.exists() and marker.read_text()):
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    checkout = other(f"open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    with pytest.raises(KeyboardInterrupt), ExecLauncher(checkout) as launcher:
        launcher.run(request())
    watcher.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_what_a_strategy_is_in_that_code_or_that_it_is_not() -> None:
    roots = (HERE, HERE / "plugins")
    with ExecLauncher(Checkout(Revision(commit="c0ffee"), roots)) as launcher:
        found = launcher.plugins(["bucketed:buckets=3", "nope"], ())
    assert isinstance(found["bucketed:buckets=3"], Plugin)
    assert "unknown strategy 'nope'" in str(found["nope"])


def test_code_that_another_installation_hides_is_refused(tmp_path: Path) -> None:
    """A folder called dflash that python cannot import from the path does not pass for the revision."""
    (tmp_path / "dflash").mkdir()
    checkout = Checkout(Revision(commit="c0ffee" * 7), (tmp_path,))
    words = r"revision c0ffeec0ffee cannot be measured: .* hides its code"
    with ExecLauncher(checkout) as launcher, pytest.raises(UsageError, match=words):
        launcher.plugins(["bucketed"], ())
