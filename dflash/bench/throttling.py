"""Whether the GPUs ran slower than they can, and why: a figure of the clock is then no figure of the code."""

from __future__ import annotations

import subprocess

# Bits of NVML's clock event reasons that mean a GPU is held back. Idle (0x1) and clocks that somebody set
# (0x2, 0x10, 0x100) are left out: the first is no loss, and the others hold for all trials alike.
_HELD_BACK = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
# The name since driver 535, and the one before.
_QUERIES = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_SECONDS = 10.0


def throttle_reasons() -> list[str]:
    """At this moment, over all GPUs, each reason once; none where the driver's tool does not answer."""
    for query in _QUERIES:
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return []
        if done.returncode == 0:
            return parse_throttle_reasons(done.stdout)
    return []


def parse_throttle_reasons(text: str) -> list[str]:
    """Reasons in the tool's answer, one bit mask a line for each GPU; a line that is none is passed over."""
    active = 0
    for line in text.split():
        if line.startswith("0x"):
            active |= int(line, 16)
    return [reason for bit, reason in _HELD_BACK.items() if active & bit]
