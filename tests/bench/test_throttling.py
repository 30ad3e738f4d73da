from __future__ import annotations

import stat

import pytest

from dflash.bench.throttling import parse_throttle_reasons, throttle_reasons


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("0x0000000000000000\n", []),
        ("0x0000000000000001\n", []),  # idle
        ("0x0000000000000102\n", []),  # clocks that somebody set
        ("0x0000000000000004\n", ["power cap"]),
        ("0x0000000000000048\n", ["hardware slowdown", "hardware thermal slowdown"]),
        (
            "0x0000000000000001\n0x0000000000000020\n0x0000000000000084\n",
            ["power cap", "software thermal slowdown", "hardware power brake"],
        ),
        ("[N/A]\n0x0000000000000004\n", ["power cap"]),
        ("", []),
    ],
)
def test_reasons_are_the_union_of_all_gpus(text: str, reasons: list[str]) -> None:
    assert parse_throttle_reasons(text) == reasons


def test_without_the_drivers_tool_there_is_no_reason(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert throttle_reasons() == []


def test_an_older_driver_is_asked_by_the_older_name(monkeypatch, tmp_path) -> None:
    """The tool is a program that knows one query only."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$1" in *clocks_throttle_reasons.active) echo 0x08;; *) exit 2;; esac\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert throttle_reasons() == ["hardware slowdown"]


def test_a_tool_that_fails_gives_no_reason(monkeypatch, tmp_path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 0x8\nexit 9\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert throttle_reasons() == []
