"""Sizes, rates and times as text: decimal and binary units apart, wrong text named."""

from __future__ import annotations

import pytest

from online_softmax.traffic import units


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("8k", 8000),
        ("8KiB", 8192),
        ("1.5 MiB", 3 << 19),
        ("2GB", 2 * 10**9),
        ("256MB", 256_000_000),
        ("1TiB", 1 << 40),
        ("1gi", 1 << 30),
        (".5k", 500),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert units.parse_bytes(text, name="--memory") == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1XB", "1e3", "1GiBs", "1 GB/s"])
def test_a_wrong_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"--llc: {text!r} is not a size"):
        units.parse_bytes(text, name="--llc")


def test_a_size_no_machine_has() -> None:
    with pytest.raises(ValueError, match="more than any machine has"):
        units.parse_bytes("10000000000 GB", name="--llc")


@pytest.mark.parametrize(
    ("text", "rate"), [("2.0TB/s", 2e12), ("41GB/s", 4.1e10), ("1 GiB/s", 2.0**30), ("5 b/s", 5.0)]
)
def test_rates(text: str, rate: float) -> None:
    assert units.parse_rate(text, name="--bandwidth") == rate


@pytest.mark.parametrize("text", ["2TB", "0GB/s", "fast", "-1GB/s", ""])
def test_a_wrong_rate_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"--bandwidth: {text!r} is not a rate"):
        units.parse_rate(text, name="--bandwidth")


@pytest.mark.parametrize(
    ("text", "seconds"), [("5us", 5e-6), ("1.5 ms", 1.5e-3), ("2s", 2.0), ("30ns", 3e-8)]
)
def test_times(text: str, seconds: float) -> None:
    assert units.parse_seconds(text, name="--latency") == pytest.approx(seconds, rel=1e-15)


def test_a_wrong_time_is_named() -> None:
    with pytest.raises(ValueError, match="--latency: '5' is not a time"):
        units.parse_seconds("5", name="--latency")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (16384, "16.4 kB (16 KiB)"),
        (134_217_728, "134.2 MB (128 MiB)"),
        (256_000_000, "256.0 MB"),
        (536_870_912, "536.9 MB (512 MiB)"),
        (1001, "1.0 kB"),
    ],
)
def test_bytes_as_text(count: int, text: str) -> None:
    assert units.bytes_text(count) == text


def test_rates_and_times_as_text() -> None:
    assert units.rate_text(2e12) == "2.00 TB/s"
    assert units.rate_text(5.0) == "5 B/s"
    assert [units.seconds_text(s) for s in (2.0, 0.0134, 134.2e-6, 5e-9)] == [
        "2.0 s",
        "13.4 ms",
        "134.2 us",
        "5.0 ns",
    ]
