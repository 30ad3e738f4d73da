from __future__ import annotations


def test_help_and_usage_come_before_any_work(bench, small_file):
    told = bench("learn", "--help")
    assert told.code == 0
    assert "--seeds" in told.out
    refused = bench("learn", "-s", "random", "--reference", "sorted", "--config", small_file)
    assert refused.code == 2
    assert "--reference 'sorted' is none of the strategies: random" in refused.err
    assert bench("learn").code == 2
