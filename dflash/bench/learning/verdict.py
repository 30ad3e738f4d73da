"""One line on a strategy that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.bench.learning.design_effect import Estimate
from dflash.bench.learning.pareto import LIKE_RANDOM, is_like_random
from dflash.bench.learning.stability import SpikeComparison
from dflash.bench.metrics import number, percent
from dflash.bench.statistics import Interval, least_pairs
from dflash.bench.verdict import Verdict

LOSS_MARGIN = 0.01
TIME_FLOOR = 0.10
MORE_CENSORED = 2


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of a strategy. Ratios are over the reference; None is not measured."""

    strategy: str
    reference: str
    speed: float | None
    speed_measured: bool
    effect: Estimate | None
    loss: Interval | None
    incomparable: str | None = None
    """why losses must not be compared"""
    time: Interval | None = None
    censored: int = 0
    """seeds that never reached the loss, beyond those of the reference"""
    spikes: SpikeComparison | None = None
    is_reference: bool = False


def judge(evidence: Evidence, level: float) -> tuple[Verdict, str]:
    """The verdict and its line.

    REGRESSED where one of these is shown: gradients noisier than random's by the margin, a loss above the
    reference's by the margin, spikes, a longer way to the loss. OK where gradients and loss are both shown to
    be within theirs; INCONCLUSIVE otherwise, which is all that few seeds allow.
    """
    gradients, gradient_words = _gradients(evidence.effect)
    loss, loss_words = _loss(evidence, level)
    verdicts, words = [gradients], [*_speed(evidence), gradient_words]
    if not evidence.is_reference:
        verdicts.append(loss)
        words.append(loss_words)
        for verdict, text in (_spikes(evidence), _time(evidence)):
            verdicts.append(verdict)
            words += [text] if text else []
    order = (Verdict.REGRESSED, Verdict.INCONCLUSIVE)
    verdict = next((one for one in order if one in verdicts), Verdict.OK)
    return verdict, f"{evidence.strategy}: {', '.join(words)}"


def _speed(evidence: Evidence) -> list[str]:
    if evidence.is_reference or evidence.speed is None:
        return ["the reference"] if evidence.is_reference else []
    how = "" if evidence.speed_measured else ", as its plan predicts"
    return [f"{number(evidence.speed, 1)}x {evidence.reference}'s real tok/s{how}"]


def _gradients(effect: Estimate | None) -> tuple[Verdict, str]:
    if effect is None:
        return Verdict.INCONCLUSIVE, "gradients not measured"
    figures = f"(design effect {number(effect.value, 2)}"
    if effect.low is None or effect.high is None:
        return Verdict.INCONCLUSIVE, f"gradients not told from random's {figures})"
    figures += f" [{number(effect.low, 2)}, {number(effect.high, 2)}], {effect.windows} windows)"
    if is_like_random(effect):
        return Verdict.OK, f"gradients like random's {figures}"
    if effect.low > 1:
        worth = f"a window is worth {percent(1 / effect.value, 0)} of a random one"
        shown = Verdict.REGRESSED if effect.value >= LIKE_RANDOM[1] else Verdict.INCONCLUSIVE
        return shown, f"gradients noisier than random's: {worth} {figures}"
    if effect.high <= LIKE_RANDOM[1]:
        return Verdict.OK, f"gradients no noisier than random's {figures}"
    return Verdict.INCONCLUSIVE, f"gradients not told from random's {figures}"


def _loss(evidence: Evidence, level: float) -> tuple[Verdict, str]:
    if evidence.incomparable is not None:
        return Verdict.INCONCLUSIVE, f"losses not ranked: {evidence.incomparable}"
    loss = evidence.loss
    if loss is None:
        return Verdict.INCONCLUSIVE, "loss not measured"
    change = loss.estimate - 1
    words = f"loss {percent(abs(change), 1)} {'higher' if change > 0 else 'lower'}"
    if loss.low is None or loss.high is None:
        few = f"{loss.n} seed{'s' if loss.n != 1 else ''}, {least_pairs(level)} give an interval"
        return Verdict.INCONCLUSIVE, f"{words} ({few})"
    bounds = f"[{_signed(loss.low)}, {_signed(loss.high)}] %"
    if loss.low > 1 and change >= LOSS_MARGIN:
        return Verdict.REGRESSED, f"{words} {bounds}"
    if loss.high < 1 and change <= -LOSS_MARGIN:
        return Verdict.OK, f"{words} {bounds}"
    if loss.high <= 1 + LOSS_MARGIN:
        within = max(abs(loss.high - 1), abs(loss.low - 1))
        equal = loss.low >= 1 - LOSS_MARGIN
        return Verdict.OK, f"loss equal within {percent(within, 1)}" if equal else f"{words} {bounds}"
    return Verdict.INCONCLUSIVE, f"{words} {bounds}: {percent(LOSS_MARGIN)} worse is not excluded"


def _spikes(evidence: Evidence) -> tuple[Verdict, str]:
    spikes = evidence.spikes
    if spikes is None or not spikes.worse:
        return Verdict.OK, ""
    more = f"{spikes.candidate} spikes against {spikes.reference} (p = {number(spikes.p)})"
    return Verdict.REGRESSED, more


def _time(evidence: Evidence) -> tuple[Verdict, str]:
    if evidence.censored >= MORE_CENSORED:
        late = f"{evidence.censored} more seeds than {evidence.reference} never reached its loss"
        return Verdict.REGRESSED, late
    time = evidence.time
    if time is None or time.low is None or not (time.low > 1 and time.estimate > 1 + TIME_FLOOR):
        return Verdict.OK, ""
    return Verdict.REGRESSED, f"{percent(time.estimate - 1, 0)} more tokens to {evidence.reference}'s loss"


def _signed(ratio: float) -> str:
    text = number(100 * (ratio - 1), 1)
    return text if ratio < 1 else f"+{text}"
