"""Results in order from several processes, and no process that outlives the work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import worker_jobs
from worker_jobs import Square

from dflash.data.workers import work_in_order
from dflash.errors import DflashError, UsageError


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order_and_chunks_are_taken_as_needed(processes):
    taken = []

    def chunks():
        for number in range(30):
            taken.append(number)
            yield number

    found, ahead = [], 0
    for result in work_in_order(Square(), chunks(), processes):
        found.append(result)
        ahead = max(ahead, len(taken) - len(found))
    assert [square for square, _ in found] == [number**2 for number in range(30)]
    workers = {process for _, process in found}
    assert workers == {os.getpid()} if processes == 1 else (len(workers) == 2 and os.getpid() not in workers)
    assert ahead <= 2 * processes


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("job", "message"),
    [(Square(refused=(3, 7)), "3 is refused"), (Square(refuses_to_open=True), "cannot be opened")],
)
def test_the_first_failure_in_order_is_raised(processes, job, message):
    found = []
    with pytest.raises(UsageError, match=message):
        found.extend(work_in_order(job, range(30), processes))
    assert len(found) in (0, 3)


def test_a_killed_worker_is_said_to_be_so():
    with pytest.raises(DflashError, match=r"worker process was killed.*fewer --processes"):
        list(work_in_order(Square(killed=4), range(30), 2))


def test_no_worker_is_left_by_who_stops_early():
    results = work_in_order(Square(), range(10**6), 2)
    workers = {next(results)[1] for _ in range(12)}
    results.close()
    assert not [worker for worker in workers if alive(worker)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_workers_end_with_their_parent_in_the_midst_of_their_work(number, code):
    """Ctrl-C goes to all processes of a terminal's group; only the parent hears it."""
    parent = subprocess.Popen(
        [sys.executable, worker_jobs.__file__],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers = [int(parent.stderr.readline()) for _ in range(2)]
    assert all(alive(worker) for worker in workers)
    if number == signal.SIGINT:
        os.killpg(parent.pid, number)
    else:
        parent.kill()
    _, err = parent.communicate(timeout=60)  # which ends only when nobody holds the pipes any more
    assert parent.returncode == code
    assert err == ""
    deadline = time.monotonic() + 60
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(process):
    """Whether it runs; one that has ended and was not asked for yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
