from __future__ import annotations

from dataclasses import replace

import pytest
from made import ceiling, reading, record

from pytest_shardcheck.reports.figures import near_ceilings, region_lines
from pytest_shardcheck.vocabulary.saved import SavedReading


@pytest.mark.parametrize(
    ("measured", "limit", "near"),
    [(95, 100, 0), (96, 100, 1), (100, 100, 1), (101, 100, 0), (0, 0, 0), (0, 100, 0)],
)
def test_a_ceiling_is_near_from_95_percent_on_and_only_where_it_is_kept(measured, limit, near):
    its = record([reading(0)], verdicts=(ceiling({0: 1, 1: measured}, limit),))
    assert len(near_ceilings(its)) == (near if measured <= limit else 0)


def test_saved_activations_that_no_hook_could_see_are_no_figure():
    unseen = replace(reading(0), saved=SavedReading(packed=1, packs=1, unseen=("vmap",)))
    (line,) = region_lines(record([unseen, reading(1, region="other", saved=0)]))[:1]
    assert line.figures.saved is None


def test_exact_markers_have_no_ceiling():
    its = record(verdicts=(ceiling({0: 99}, 100, marker="memory"),))
    assert near_ceilings(its) == []


def test_occurrences_and_ranks_of_one_claim_are_one_ceiling_the_fullest():
    its = record(
        verdicts=(
            ceiling({0: 97, 1: 98}, 100),
            ceiling({0: 99, 1: 9}, 100, occurrence=1),
            ceiling({0: 97}, 100, narrowing="rank=0"),
            ceiling({0: 97}, 100, region="other"),
            ceiling({0: 97}, 100, argument="live"),
            ceiling({0: 97}, 100, marker="max_saved_activations", argument="bytes"),
        )
    )
    near = near_ceilings(its)
    assert len(near) == 5
    assert near[0].occurrence == 1


def test_a_line_is_of_the_ranks_that_share_all_figures():
    readings = [reading(rank, live=(0, 0, 5 if rank in (1, 3) else 6)) for rank in range(4)]
    lines = region_lines(record(readings))
    assert [(line.ranks, line.figures.peak, line.worst) for line in lines] == [
        ((0, 2), 6, True),
        ((1, 3), 5, False),
    ]


def test_a_region_of_any_name_is_one_line_and_moves_no_cursor():
    (line,) = region_lines(record([reading(0, "a\nb \x1b[2J \u00e9")]))
    assert line.region == "a?b ?[2J \u00e9"
