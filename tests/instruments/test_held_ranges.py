from __future__ import annotations

import random

import pytest
import torch

from pytest_shardcheck.instruments.byte_ranges import ByteRanges
from pytest_shardcheck.instruments.held_ranges import HeldRanges, part_of


@pytest.fixture
def ranges():
    return HeldRanges()


def views_of(base: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Return a view such as models save: a part, a stride, a transposition, an expansion."""
    view = base
    for _ in range(rng.randint(0, 3)):
        dim = rng.randrange(view.dim())
        size = view.shape[dim]
        start = rng.randrange(size)
        match rng.randrange(5):
            case 0:
                view = view.narrow(dim, start, rng.randint(1, size - start))
            case 1:
                view = view.transpose(dim, rng.randrange(view.dim()))
            case 2:
                view = view[(slice(None),) * dim + (slice(start, None, rng.randint(1, 3)),)]
            case 3:
                view = view.chunk(rng.randint(1, 3), dim)[-1]
            case 4 if view.dim() < 5:
                view = view.unfold(dim, rng.randint(1, size), rng.randint(1, 2))
    return view


@pytest.mark.parametrize("seed", range(30))
def test_what_comes_and_goes_counts_as_if_counted_anew(ranges, seed):
    rng = random.Random(seed)
    bases = [torch.zeros(4, 6, 5), torch.zeros(3, 8), torch.zeros(20)[3:]]
    held = []
    for _ in range(120):
        if held and rng.random() < 0.45:
            ranges.remove(part_of(held.pop(rng.randrange(len(held)))))
        else:
            held.append(views_of(rng.choice(bases), rng))
            ranges.add(part_of(held[-1]))
        anew = ByteRanges()
        assert ranges.bytes == sum(map(anew.add, held))
        storages = {tensor.untyped_storage()._cdata: tensor for tensor in held}
        assert ranges.storage_bytes == sum(t.untyped_storage().nbytes() for t in storages.values())
    for tensor in held:
        ranges.remove(part_of(tensor))
    assert (ranges.bytes, ranges.storage_bytes, ranges._storages) == (0, 0, {})


def test_an_addition_says_how_much_is_new(ranges):
    base = torch.zeros(10)
    assert [ranges.add(part_of(view)) for view in (base[:4], base[2:6], base, base[:4])] == [
        16,
        8,
        16,
        0,
    ]


def test_time_steps_of_a_long_sequence_are_counted_on_one_tooth(ranges):
    sequence = torch.zeros(32, 500, 8)
    parts = [part_of(sequence[:, step]) for step in range(500)]
    assert all(len(forms) == 1 for _, _, forms in parts)
    assert [ranges.add(part) for part in parts] == [32 * 8 * 4] * 500
    (storage,) = ranges._storages.values()
    assert len(storage._union._groups) == 1


def test_a_whole_storage_contains_its_parts(ranges):
    qkv = torch.zeros(2, 7, 12)
    assert ranges.add(part_of(qkv)) == qkv.nbytes
    assert [ranges.add(part_of(view)) for view in qkv.chunk(3, dim=-1)] == [0, 0, 0]
    ranges.remove(part_of(qkv))
    assert ranges.bytes == qkv.nbytes


def test_a_storage_resized_to_zero_counts_nothing(ranges):
    tensor = torch.zeros(8)
    tensor.untyped_storage().resize_(0)
    assert ranges.add(part_of(tensor)) == 0
    ranges.remove(part_of(tensor))


def test_an_empty_tensor_counts_nothing(ranges):
    assert ranges.add(part_of(torch.zeros(0, 5))) == 0
    assert ranges.add(part_of(torch.zeros(4, 5)[:, :0])) == 0


def test_combs_of_too_many_teeth_are_a_guess_where_they_cross(ranges):
    wide = torch.zeros(70_000, 4)
    assert ranges.add(part_of(wide[:, :2])) == 70_000 * 8
    assert ranges.add(part_of(wide.view(-1, 8)[:, 3:5])) > 0
