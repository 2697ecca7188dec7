"""The data file of devices: a source for every figure, known ones pinned, faults in the text named."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from importlib import resources

import pytest

from online_softmax.traffic import devices
from online_softmax.traffic.devices import FIGURES, Device, Figure, device, names, parse

KEYS = (
    "h100",
    "h200",
    "b200",
    "a100",
    "l4",
    "rtx4090",
    "mi300x",
    "apple-m4-max",
    "apple-m3-max",
    "apple-m2-ultra",
)
KI, TERA = 1 << 10, 10**12

TEXT = """
[sources]
sheet = "Maker, data sheet, https://example.org/sheet"

[one]
name = "One"
vendor = "Maker"
kind = "gpu"

[one.figures]
memory_bandwidth = { value = 3_000, unit = "B/s", source = "sheet", checked = true }
units = { value = 7, unit = "1", source = "sheet", checked = false, note = "of 8" }
clock = { value = 11, unit = "Hz", source = "sheet", checked = true }
launch = { value = 2e-6, unit = "s", source = "sheet", checked = true }

[one.figures.peak]
float32 = { value = 5_000, unit = "flop/s", source = "sheet", checked = true }
"""


def edited(old: str, new: str) -> str:
    """TEXT with one change; the place must be there, once."""
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


# The file of the package.


def test_names_are_the_devices_of_the_file() -> None:
    assert names() == KEYS


@pytest.mark.parametrize("key", KEYS)
def test_every_device_is_named_and_has_a_bandwidth_with_its_source(key: str) -> None:
    found = device(key)
    assert (found.key, found.kind) == (key, "gpu")
    assert found.vendor in {"NVIDIA", "AMD", "Apple"}
    assert found.name.startswith(found.vendor)
    bandwidth = found.figures["memory_bandwidth"]
    assert (bandwidth.value, bandwidth.unit) == (found.memory_bandwidth, "B/s")
    assert bandwidth.checked


@pytest.mark.parametrize("key", KEYS)
def test_every_source_has_a_title_and_most_an_address(key: str) -> None:
    # What a program prints on the device, and a bus standard, have no page of their own.
    without = ("deviceQuery, ", "rocminfo, ", "PCI Express 4.0, ")
    for figure in device(key).figures.values():
        assert "https://" in figure.source or figure.source.startswith(without)


def test_every_source_of_the_file_is_cited() -> None:
    document = tomllib.loads(
        resources.files("online_softmax.traffic").joinpath("devices.toml").read_text(encoding="utf-8")
    )
    titles = document["sources"]
    cited = [figure.source for key in KEYS for figure in device(key).figures.values()]
    idle = [key for key, title in titles.items() if not any(source.startswith(title) for source in cited)]
    assert idle == []


@pytest.mark.parametrize("key", KEYS)
def test_a_block_has_no_more_than_its_unit_and_a_unit_less_than_the_cache(key: str) -> None:
    found = device(key)
    if found.onchip_per_unit is not None:
        assert found.onchip_per_block is not None
        assert found.last_level is not None
        assert found.onchip_per_block <= found.onchip_per_unit < found.last_level
    if found.last_level is not None:
        assert found.memory is not None
        assert found.last_level < found.memory


@pytest.mark.parametrize("key", [key for key in KEYS if not key.startswith("apple")])
def test_the_vector_peak_is_clock_times_lanes(key: str) -> None:
    # 128 float32 lanes a unit, 64 on A100 (CUDA C++ Best Practices Guide, table 5; MI300X: 256 flop a clock),
    # each a fused multiply-add a clock; peaks are published to three digits, that of B200 to two.
    found = device(key)
    assert found.clock is not None
    assert found.units is not None
    lanes = 64 if key == "a100" else 128
    digit = TERA if key == "b200" else TERA // 10
    assert abs(found.peak["float32"] - 2 * lanes * found.units * found.clock) <= digit


def test_h100() -> None:
    found = device("h100")
    assert found.name == "NVIDIA H100 SXM5 80 GB"
    assert (found.memory_bandwidth, found.memory) == (3_350_000_000_000, 80_000_000_000)
    assert (found.units, found.clock, found.last_level) == (132, 1_980_000_000, 50 * KI * KI)
    assert (found.onchip_per_unit, found.onchip_per_block) == (228 * KI, 227 * KI)
    assert (found.registers_per_unit, found.threads_per_unit) == (256 * KI, 2048)
    assert found.peak["float32"] == 66.9e12
    assert dict(found.matrix_peak) == {
        "tf32": 494.7e12,
        "float16": 989.4e12,
        "bfloat16": 989.4e12,
        "float8": 1978.9e12,
    }
    assert found.exps_per_second == 16 * 132 * 1_980_000_000
    assert (found.launch_seconds, found.link_bandwidth, found.link_latency) == (2.1e-6, 450_000_000_000, 6e-7)


def test_mi300x() -> None:
    found = device("mi300x")
    assert (found.memory_bandwidth, found.memory) == (5_300_000_000_000, 192 * KI**3)
    assert (found.units, found.clock, found.last_level) == (304, 2_100_000_000, 256 * KI * KI)
    assert (found.onchip_per_unit, found.onchip_per_block) == (64 * KI, 64 * KI)
    assert (found.registers_per_unit, found.threads_per_unit) == (512 * KI, 2048)
    assert (found.peak["float32"], found.matrix_peak["float8"]) == (163.4e12, 2614.9e12)
    assert found.exps_per_second == 304 * 16 * 2_100_000_000
    assert found.link_bandwidth == 7 * 64_000_000_000
    assert found.launch_seconds is None


@pytest.mark.parametrize(
    ("key", "bandwidth", "units", "exps"),
    [
        ("h200", 4_800_000_000_000, 132, 16 * 132 * 1_980_000_000),
        ("b200", 7_700_000_000_000, 148, 16 * 148 * 1_965_000_000),
        ("a100", 2_039_000_000_000, 108, 16 * 108 * 1_410_000_000),
        ("l4", 300_000_000_000, 58, 16 * 58 * 2_040_000_000),
        ("rtx4090", 1_008_000_000_000, 128, 16 * 128 * 2_520_000_000),
        ("apple-m4-max", 546_000_000_000, 40, None),
        ("apple-m3-max", 400_000_000_000, 40, None),
        ("apple-m2-ultra", 800_000_000_000, 76, None),
    ],
)
def test_bandwidth_units_and_exponentials(key: str, bandwidth: int, units: int, exps: int | None) -> None:
    found = device(key)
    assert (found.memory_bandwidth, found.units, found.exps_per_second) == (bandwidth, units, exps)


def test_what_nobody_published_is_none() -> None:
    found = device("apple-m4-max")
    assert (found.last_level, found.clock, found.exps_per_second, found.link_bandwidth) == (None,) * 4
    assert (dict(found.peak), dict(found.matrix_peak)) == ({}, {})


def test_unknown_device() -> None:
    with pytest.raises(
        ValueError, match=r"^device='h900' is unknown: 'h100', .*'apple-m2-ultra' or 'this' would do$"
    ):
        device("h900")


def test_records_cannot_be_changed() -> None:
    found = device("h100")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.units = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        found.matrix_peak["float16"] = 1.0  # type: ignore[index]


# Texts.


def test_parse() -> None:
    title = "Maker, data sheet, https://example.org/sheet"
    assert parse(TEXT) == {
        "one": Device(
            key="one",
            name="One",
            vendor="Maker",
            kind="gpu",
            memory_bandwidth=3000,
            memory=None,
            last_level=None,
            units=7,
            onchip_per_unit=None,
            onchip_per_block=None,
            registers_per_unit=None,
            threads_per_unit=None,
            clock=11,
            peak={"float32": 5000.0},
            matrix_peak={},
            exps_per_second=None,
            launch_seconds=2e-6,
            link_bandwidth=None,
            link_latency=None,
            figures={
                "memory_bandwidth": Figure(3000, "B/s", title, True),
                "units": Figure(7, "1", f"{title} (of 8)", False),
                "clock": Figure(11, "Hz", title, True),
                "launch": Figure(2e-6, "s", title, True),
                "peak.float32": Figure(5000, "flop/s", title, True),
            },
        )
    }


def test_exponentials_follow_from_clock_units_and_rate() -> None:
    line = (
        'transcendentals_per_clock = { value = 4, unit = "1", source = "sheet", checked = true }\nlaunch = '
    )
    assert parse(edited("launch = ", line))["one"].exps_per_second == 11 * 7 * 4


def test_every_figure_has_a_field() -> None:
    fields = {field.name for field in dataclasses.fields(Device)}
    # Two are not fields of that name: the rate of a unit lies in exps_per_second, launch in launch_seconds.
    assert set(FIGURES) - fields == {"transcendentals_per_clock", "launch"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'unit = "B/s"',
            'unit = "GB/s"',
            "device='one', figure='memory_bandwidth': unit='GB/s', 'B/s' would do",
        ),
        ('unit = "Hz"', 'unit = "s"', "device='one', figure='clock': unit='s', 'Hz' would do"),
        ('unit = "B/s", ', "", "device='one', figure='memory_bandwidth': 'unit' is missing"),
        ("value = 7", "value = 0", "device='one', figure='units': value=0, a positive whole number would do"),
        (
            "value = 7",
            "value = -7",
            "device='one', figure='units': value=-7, a positive whole number would do",
        ),
        (
            "value = 7",
            "value = 7.0",
            "device='one', figure='units': value=7.0, a positive whole number would do",
        ),
        (
            "value = 7",
            "value = true",
            "device='one', figure='units': value=True, a positive whole number would do",
        ),
        (
            "value = 2e-6",
            "value = nan",
            "device='one', figure='launch': value=nan, a positive number would do",
        ),
        (
            "value = 2e-6",
            "value = inf",
            "device='one', figure='launch': value=inf, a positive number would do",
        ),
        ("value = 5_000", "value = -1", "figure='peak.float32': value=-1, a positive whole number would do"),
        ('"Hz", source = "sheet", ', '"Hz", ', "device='one', figure='clock': 'source' is missing"),
        (
            '"Hz", source = "sheet"',
            '"Hz", source = "no such"',
            "device='one', figure='clock': source='no such' is not listed under [sources]",
        ),
        (
            '"Hz", source = "sheet", checked = true',
            '"Hz", source = "sheet"',
            "figure='clock': 'checked' is missing",
        ),
        (
            '"Hz", source = "sheet", checked = true',
            '"Hz", source = "sheet", checked = 1',
            "checked=1, true or false",
        ),
        ('note = "of 8"', 'note = ""', "device='one', figure='units': note='', some text would do"),
        ('note = "of 8"', 'remark = "of 8"', "device='one', figure='units': 'remark' is unknown"),
        ("units = {", "cores = {", "device='one', figures: 'cores' is unknown, 'memory_bandwidth', "),
        ("float32 = {", "float31 = {", "device='one', figure='peak': 'float31' is unknown, 'float64', "),
        ("[one.figures.peak]", "[one.figures.matrix]", "device='one', figures: 'matrix' is unknown"),
        ("memory_bandwidth = {", "memory = {", "device='one', figure='memory': unit='B/s', 'B' would do"),
        ('name = "One"', "", "device='one': 'name' is missing"),
        ('name = "One"', 'name = " "', "device='one': name=' ', some text would do"),
        ('kind = "gpu"', 'kind = "tpu"', "device='one': kind='tpu', one of 'gpu', 'cpu' would do"),
        ('kind = "gpu"', 'kind = "gpu"\nyear = 2020', "device='one': 'year' is unknown"),
        (
            '"Maker, data sheet, https://example.org/sheet"',
            '""',
            "source='sheet': '' given, a title as text would do",
        ),
        (
            "[one.figures]",
            "[one.figures]\nmemory = 5",
            "device='one', figure='memory': 5 given, a table would do",
        ),
    ],
)
def test_faults_name_device_and_figure(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(edited(old, new))


def test_a_device_without_a_bandwidth() -> None:
    line = next(line for line in TEXT.splitlines() if line.startswith("memory_bandwidth"))
    with pytest.raises(ValueError, match=r"^device='one', figure='memory_bandwidth' is missing"):
        parse(edited(line, ""))


@pytest.mark.parametrize("text", ["sources = 3", "one = 3"])
def test_tables_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"3 given, a table would do"):
        parse(text)


def test_what_is_not_toml() -> None:
    with pytest.raises(ValueError, match=r"Expected '=' after a key"):
        parse("one two")


def test_a_device_without_sources_listed() -> None:
    with pytest.raises(
        ValueError, match=r"^device='one', figure='memory_bandwidth': source='sheet' is not listed"
    ):
        parse(TEXT.replace("[sources]\n", "").replace("sheet = ", "# "))


def test_the_file_is_read_once() -> None:
    assert device("h100") is device("h100")
    assert devices.names() == KEYS
