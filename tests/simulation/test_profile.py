from __future__ import annotations

import msgspec
import pytest

from dflash.errors import UsageError
from dflash.simulation import profile as module
from dflash.simulation.profile import (
    Figure,
    Fitted,
    Measured,
    Profile,
    dump_profile,
    load_profile,
    parse_profile,
    profiles,
    save_profile,
)

STAGE = Fitted([0.5, 0.25], 0.01, 0.02, "made up")
FIGURE = Figure(2.0, "made up")
PROFILE = Profile(
    name="mine",
    summary="a machine of mine",
    measured=Measured(
        sizes="0123",
        cores=2,
        supervised_share=0.7,
        label_share=0.9,
        target_padded=Fitted([1.0, 2.0, 3.0], 0.01, 0.02, "made up"),
        target_packed=Fitted([1.0, 2.0, 3.0], 0.01, 0.02, "made up"),
        drafter=Fitted([1.0, 2.0, 3.0, 4.0, 5.0], 0.01, 0.02, "made up"),
        load=STAGE,
        optimizer_seconds=FIGURE,
        copy_bandwidth=FIGURE,
        target_slowdown=FIGURE,
        drafter_slowdown=FIGURE,
    ),
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "user_folder", lambda: tmp_path / "profiles")
    return tmp_path / "profiles"


@pytest.mark.parametrize("name", ["b200", "h100", "h200", "rtx-pro-6000"])
def test_shipped_profiles_load_and_every_figure_has_a_source(name):
    assert name in profiles()
    found = load_profile(name)
    assert found.name == name
    for field in found.rates.__struct_fields__:
        figure = getattr(found.rates, field)
        assert figure.value > 0
        assert len(figure.source) > 10
    for share in ("efficiency", "attention_efficiency", "training_efficiency"):
        assert getattr(found.rates, share).value < 1


def test_a_profile_survives_its_file(own_folder):
    for cores in (2, None):
        one = msgspec.structs.replace(
            PROFILE, measured=msgspec.structs.replace(PROFILE.measured, cores=cores)
        )
        assert parse_profile(dump_profile(one), "text") == one
        assert save_profile(one) == own_folder / "mine.toml"
        assert load_profile("mine") == one
    assert profiles()[-1] == "mine"


def test_a_users_own_profile_comes_first(own_folder):
    save_profile(msgspec.structs.replace(PROFILE, name="h100"))
    assert load_profile("h100").measured is not None


def test_unknown_hardware_lists_what_there_is():
    with pytest.raises(
        UsageError, match="no hardware profile 'gtx': there are b200, h100, h200, rtx-pro-6000"
    ):
        load_profile("gtx")
    with pytest.raises(
        UsageError, match=r"no hardware profile 'cpu-this': .*; dflash-bench calibrate makes cpu-this"
    ):
        load_profile("cpu-this")


RATES = dump_profile(load_profile("h200"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = [", "x.toml is not valid TOML"),
        ("name = 'x'\nsummary = ''", "a profile has either rates or measured coefficients"),
        (RATES.replace("peak_flops", "peak_flop"), "peak_flop"),
        (RATES.replace("9.89e14", "-1.0").replace("989000000000000.0", "-1.0"), "rates.peak_flops.value"),
        (RATES.replace("0.43", "'much'"), "rates.efficiency.value"),
        (dump_profile(PROFILE).replace("cores = 2", "cores = 0"), "cores is 0"),
        (dump_profile(PROFILE).replace("    5.0,\n", ""), "drafter has 4 coefficients, expected 5"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, message):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        load_profile(str(tmp_path / "x.toml"))
    assert "x.toml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the profile .*no.toml: No such file"):
        load_profile(str(tmp_path / "no.toml"))


def test_a_profile_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the profile"):
        save_profile(PROFILE, tmp_path / "file" / "x.toml")
