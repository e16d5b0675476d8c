from __future__ import annotations

import random

import pytest

from pytest_shardcheck.vocabulary import (
    UsageError,
    counterpart,
    format_bytes,
    format_ceiling,
    format_size,
    in_unit,
    parse_size,
    written_unit,
)

EDGES = (0, 1, 999, 1000, 1001, 99_949, 999_949, 999_950, 999_999, 1_000_000, 10**12, 10**15)


def sizes() -> list[int]:
    """Return sizes of every order of magnitude up to a petabyte, the same in every run."""
    draw = random.Random(15)
    return [*EDGES, *(draw.randrange(10 ** draw.randrange(1, 16)) for _ in range(20_000))]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (0, 0),
        (8_421_440, 8_421_440),
        ("0 B", 0),
        ("300 kB", 300_000),
        ("300 KB", 300_000),
        ("300kB", 300_000),
        ("4.3 MB", 4_300_000),
        ("2.1 GB", 2_100_000_000),
        ("1 TB", 10**12),
        ("1 KiB", 1024),
        ("1 kiB", 1024),
        ("0.5 MiB", 512 * 1024),
        ("80 GiB", 80 * 1024**3),
        ("2 TiB", 2 * 1024**4),
        ("8,421,440 B", 8_421_440),
        ("8_421_440 B", 8_421_440),
        ("1.9999 kB", 1999),
        ("0.1 KiB", 102),
        ("4503599627370497.001 kB", 4503599627370497001),
    ],
)
def test_a_size_is_read_to_the_byte(given: object, size: int) -> None:
    assert parse_size(given) == size


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (-1, "-1 is negative"),
        (True, "True is a bool"),
        (False, "False is a bool"),
        (1.5, "1.5 is a float"),
        (None, "None is a NoneType"),
        (b"1 MB", "b'1 MB' is a bytes"),
        ("-1 MB", "'-1 MB' is negative"),
        ("100", "'100' has no unit"),
        ("", "'' is not a size"),
        ("MB", "'MB' is not a size"),
        ("1,00 MB", "'1,00 MB' is not a size"),
        ("1.2.3 MB", "'1.2.3 MB' is not a size"),
        ("1e6 B", "'1e6 B' is not a size"),
        ("1 MB\n", r"'1 MB\n' is not a size"),
        ("1 MB or so", "'1 MB or so' is not a size"),
        ("٣ MB", "'٣ MB' is not a size"),
        ("1 Mb", "'1 Mb' has no unit that is known (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)"),
        ("1 mb", "'1 mb' has no unit that is known"),
        ("3 XB", "'3 XB' has no unit that is known"),
    ],
)
def test_what_is_no_size_is_refused_with_what_is_one(given: object, seen: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_size(given)
    assert str(error.value).startswith(seen)
    assert str(error.value).endswith('an int of bytes or a size with a unit such as "2.1 MB" or '
                                     '"80 GiB"')  # fmt: skip


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (4_210_752, "4.2 MB"),
        (140_194_000_000, "140.2 GB"),
        (2 * 10**15, "2000.0 TB"),
    ],
)
def test_a_size_is_written_for_reading(size: int, text: str) -> None:
    assert format_size(size) == text


def test_a_size_written_for_reading_is_read_back_to_its_tenth() -> None:
    for size in sizes():
        text = format_size(size)
        assert format_size(parse_size(text)) == text
        assert abs(parse_size(text) - size) <= max(parse_size("0.05 " + text.split()[1]), 0)


def test_a_size_written_to_the_byte_is_read_back() -> None:
    assert format_bytes(8_421_440) == "8,421,440 B"
    assert all(parse_size(format_bytes(size)) == size for size in sizes())


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1001, "1.01 kB"),
        (999_001, "1 MB"),
        (4_210_752, "4.22 MB"),
        (8_421_440, "8.43 MB"),
        (8_430_000, "8.43 MB"),
        (8_430_001, "8.44 MB"),
        (10**15 + 1, "1010 TB"),
    ],
)
def test_a_ceiling_is_written_in_three_digits_rounded_up(size: int, text: str) -> None:
    assert format_ceiling(size) == text


def test_a_written_ceiling_is_passed_and_close() -> None:
    for size in sizes():
        ceiling = parse_size(format_ceiling(size))
        assert size <= ceiling <= size * 1.01


@pytest.mark.parametrize(
    ("given", "unit"),
    [
        ("80 GB", "GB"),
        ("80GiB", "GiB"),
        ("1,024 KB", "kB"),
        ("1 kiB", "KiB"),
        ("7 B", "B"),
        (999, "B"),
        (4_210_752, "MB"),
        (1024**3, "GB"),  # an int says nothing of its system: decimal, as everywhere
    ],
)
def test_the_unit_that_a_size_is_written_in(given: object, unit: str) -> None:
    assert written_unit(given) == unit


@pytest.mark.parametrize("given", ["80", "80 Gb", -1, 1.5])
def test_what_is_no_size_has_no_unit(given: object) -> None:
    with pytest.raises(UsageError):
        written_unit(given)


def test_each_unit_has_its_counterpart_in_the_other_system() -> None:
    pairs = {"kB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB"}
    assert {unit: counterpart(unit) for unit in pairs} == pairs
    assert all(counterpart(binary) == decimal for decimal, binary in pairs.items())
    assert counterpart("B") == "B"


@pytest.mark.parametrize(
    ("size", "unit", "digits", "text"),
    [
        (1_120_000_000_000, "GB", 1, "1,120.0"),
        (80 * 1024**3, "GiB", 0, "80"),
        (80 * 1024**3, "GB", 2, "85.90"),
        (1_234, "B", 1, "1,234"),
        (0, "TiB", 1, "0.0"),
    ],
)
def test_a_size_in_one_unit(size: int, unit: str, digits: int, text: str) -> None:
    assert in_unit(size, unit, digits) == text
