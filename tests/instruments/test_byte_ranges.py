from __future__ import annotations

import pytest
import torch

from pytest_shardcheck.instruments.byte_ranges import ByteRanges


@pytest.fixture
def ranges():
    return ByteRanges()


def test_a_tensor_counts_once(ranges):
    tensor = torch.zeros(4, 4)
    assert [ranges.add(tensor), ranges.add(tensor), ranges.add(tensor.view(16))] == [64, 0, 0]


def test_a_view_counts_its_own_bytes_not_its_storage(ranges):
    bucket = torch.zeros(100)
    assert [ranges.add(bucket[:10]), ranges.add(bucket[40:50]), ranges.add(bucket)] == [40, 40, 320]


@pytest.mark.parametrize(
    ("first", "second", "new"),
    [
        pytest.param((0, 10), (5, 15), 20, id="overlaps right"),
        pytest.param((5, 15), (0, 10), 20, id="overlaps left"),
        pytest.param((0, 10), (10, 20), 40, id="touches"),
        pytest.param((5, 10), (0, 20), 60, id="contains"),
        pytest.param((0, 20), (5, 10), 0, id="is contained"),
        pytest.param((0, 5), (10, 15), 20, id="apart"),
    ],
)
def test_overlapping_views_count_their_union(ranges, first, second, new):
    base = torch.zeros(20)
    ranges.add(base[slice(*first)])
    assert ranges.add(base[slice(*second)]) == new


def test_one_tensor_joins_several_ranges(ranges):
    base = torch.zeros(20)
    for start in (0, 4, 8, 16):
        ranges.add(base[start : start + 2])
    assert ranges.add(base[1:17]) == 4 * (16 - 1 - 2 - 2 - 1)
    assert ranges.add(base) == 4 * 2


def test_a_storage_resized_to_zero_counts_nothing(ranges):
    tensor = torch.zeros(8)
    tensor.untyped_storage().resize_(0)
    assert tensor.numel() == 8
    assert ranges.add(tensor) == 0


def test_a_storage_shrunk_below_a_view_cuts_it(ranges):
    base = torch.zeros(8)
    views = base[6:], base[2:]
    base.untyped_storage().resize_(20)
    assert [*map(ranges.add, views), ranges.add(base)] == [0, 12, 8]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        pytest.param(lambda: torch.zeros(()), 4, id="0-dim"),
        pytest.param(lambda: torch.zeros(0, 5), 0, id="empty"),
        pytest.param(lambda: torch.zeros(3, 5).t(), 60, id="transposed"),
        pytest.param(lambda: torch.zeros(1, 5).expand(1000, 5), 20, id="expanded"),
        pytest.param(lambda: torch.zeros(4, 6)[:, 1], 16, id="column"),
        pytest.param(lambda: torch.zeros(4, 6)[:, 1:3], 32, id="columns"),
        pytest.param(lambda: torch.zeros(4, 6, 2)[::2, ::3], 32, id="strided blocks"),
        pytest.param(lambda: torch.zeros(10).unfold(0, 4, 1), 40, id="sliding windows"),
        pytest.param(lambda: torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last), 384),
        pytest.param(lambda: torch.zeros(3, dtype=torch.complex64).conj(), 24, id="conjugate"),
        pytest.param(lambda: torch.zeros(3, dtype=torch.bfloat16), 6, id="bf16"),
    ],
)
def test_a_tensor_counts_the_bytes_that_its_elements_cover(ranges, make, size):
    tensor = make()
    addresses = {
        tensor.element_size() * (tensor.storage_offset() + sum(map(int.__mul__, index, strides)))
        for strides in [tensor.stride()]
        for index in torch.cartesian_prod(*map(torch.arange, tensor.shape), torch.arange(1))
        .reshape(-1, tensor.dim() + 1)[:, : tensor.dim()]
        .tolist()
    }
    assert ranges.add(tensor) == size == len(addresses) * tensor.element_size()


def test_interleaved_columns_share_nothing(ranges):
    base = torch.zeros(4, 6)
    assert [ranges.add(base[:, 0::2]), ranges.add(base[:, 1::2]), ranges.add(base)] == [48, 48, 0]


def test_a_tensor_of_too_many_runs_counts_its_own_bytes(ranges):
    columns = torch.zeros(70_000, 4)[:, :2]
    assert [ranges.add(columns), ranges.add(columns)] == [70_000 * 8, 0]


def test_storages_freed_while_counting_are_not_confused(ranges):
    assert sum(ranges.add(torch.zeros(64)) for _ in range(50)) == 50 * 256
