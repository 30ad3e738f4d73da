"""One trial in an interpreter of its own: what `--against REV` runs on both sides.

Run as a script of this revision, with the path of the revision that is measured: it imports that one's
code, and asks it for what it knows. Nothing of this package may be imported here but through that path.

    python -P one_trial.py FD < request      a pickled dict of `request` or `probe`; the answer goes to FD
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import pickle
import signal
import sys
import traceback
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # and nobody outlives it
    os.dup2(2, 1)  # whatever a plugin prints stays out of our output
    question = pickle.load(sys.stdin.buffer)
    try:
        if "probe" in question:
            answer = probe(question["probe"], question["blocked"])
        else:
            answer = measure(question["request"])
    except Exception as error:
        from dflash.errors import DflashError

        known = isinstance(error, DflashError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        answer = {"failure": " ".join(text.split()), "traceback": traceback.format_exc()}
    with open(int(sys.argv[1]), "wb") as out:
        pickle.dump(answer, out)


def probe(strategies: list[str], blocked: tuple[str, ...]) -> dict[str, Any]:
    """Where this code is, and for each strategy its origin, or what is wrong with it here."""
    import dflash
    from dflash.plugin_manager import PluginManager

    found: dict[str, dict[str, str] | str] = {}
    for name in strategies:
        try:
            record = PluginManager(blocked=blocked).arms(name)[0].record
            origin = {"distribution": record.distribution, "version": record.version}
            found[name] = origin | {"file_hash": record.sha256}
        except Exception as error:
            found[name] = " ".join(str(error).split())
    return {"file": dflash.__file__, "strategies": found}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """The fields of this revision's Measurement, in plain values."""
    import msgspec
    import torch

    from dflash.bench.exchange import TrialRequest
    from dflash.bench.trial import measure_trial

    torch.set_num_threads(1)
    config = _known_settings(request["config"], request["defaults"])
    known = {field.name for field in dataclasses.fields(TrialRequest)}
    facts = {name: value for name, value in request.items() if name in known}
    measurement = measure_trial(TrialRequest(**(facts | {"config": config})))
    fields = {field.name: getattr(measurement, field.name) for field in dataclasses.fields(measurement)}
    plain: dict[str, Any] = msgspec.to_builtins(fields)
    return plain


def _known_settings(values: dict[str, dict[str, Any]], defaults: dict[str, dict[str, Any]]) -> Any:
    """This revision's Config. What it has no setting for is passed over where it stands at its default."""
    import msgspec

    from dflash.config import Config
    from dflash.errors import UsageError

    ours = msgspec.to_builtins(Config())
    taken: dict[str, dict[str, Any]] = {}
    for section, settings in values.items():
        for key, value in settings.items():
            if key in ours.get(section, {}):
                taken.setdefault(section, {})[key] = value
            elif value != defaults[section][key]:
                raise UsageError(f"this revision has no setting {section}.{key}, which is set to {value!r}")
    return msgspec.convert(taken, Config)


if __name__ == "__main__":
    main()
