from __future__ import annotations

from made import ceiling, reading, record

from pytest_shardcheck.reports.job_summary import job_summary
from pytest_shardcheck.reports.properties import properties
from pytest_shardcheck.vocabulary import MemoryReading, Reading

NEAR = (
    ceiling({0: 98, 1: 96}, 100, narrowing="region='step'"),
    ceiling({0: 16, 1: 16}, 16, "all_gather", marker="max_collectives", unit="calls"),
    ceiling({0: 50}, 100, "live"),
)
PASSED = record(
    [
        reading(0, live=(0, 7_000, 98), calls={"all_gather": (16, 1000)}, saved=3),
        reading(1, live=(0, 7_000, 96), calls={"all_gather": (16, 1000)}, saved=3),
    ],
    "a.py::test[a|b-world2]",
    verdicts=NEAR,
)
FAILED = record(
    nodeid="a.py::test_<fails>[world2]",
    outcome="failed",
    failure="rank 1 of 2 failed & left\n```\nValueError\n",
)
ERROR = record(nodeid="a.py::test_error[world2]", outcome="error", failure="in setup")


def test_failures_come_first_then_ceilings_then_the_table():
    lines = job_summary([PASSED, FAILED, ERROR], "3 worlds, 6 ranks").splitlines()
    assert [line for line in lines if line and "---" not in line] == [
        "### shardcheck: 3 worlds, 6 ranks",
        (
            "<details><summary><b>Failed</b> <code>a.py::test_&lt;fails&gt;[world2]</code>: "
            "rank 1 of 2 failed &amp; left</summary>"
        ),
        "````text",
        "rank 1 of 2 failed & left",
        "```",
        "ValueError",
        "````",
        "</details>",
        "<details><summary><b>Failed</b> <code>a.py::test_error[world2]</code>: in setup</summary>",
        "```text",
        "in setup",
        "```",
        "</details>",
        "<details open><summary>Ceilings within 5 % (2)</summary>",
        "| test | marker | region | measured | ceiling |  |",
        (
            "| `a.py::test[a\\|b-world2]` | `max_memory(peak, region='step')` | step | 98 B "
            "| 100 B | 98.0 % |"
        ),
        "| `a.py::test[a\\|b-world2]` | `max_collectives(all_gather)` | step | 16 | 16 | 100.0 % |",
        "</details>",
        "<details><summary>What each rank held and sent</summary>",
        "| test | region | ranks | state | live | peak | ceiling | calls | wire | saved |",
        (
            "| `a.py::test[a\\|b-world2]` | step | **0** | 8.4 MB | 7.0 kB | 98 B | 98.0 % | 16 "
            "| 16.0 kB | 3 B |"
        ),
        "|  | step | 1 | 8.4 MB | 7.0 kB | 96 B | 96.0 % | 16 | 16.0 kB | 3 B |",
        "</details>",
    ]


def test_many_ceilings_are_folded():
    many = [record(nodeid=f"a.py::test_{n}", verdicts=NEAR[:1]) for n in range(11)]
    assert "<details open><summary>Ceilings within 5 % (10)" in job_summary(many[:10], "")
    assert "<details><summary>Ceilings within 5 % (11)" in job_summary(many, "")


def test_an_incomplete_run_says_so():
    assert "> Incomplete: interrupted" in job_summary([PASSED], "1 world", "interrupted")


def test_it_stays_below_what_github_takes():
    long = record(nodeid="a.py::long", outcome="failed", failure="x" * 50_000)
    text = job_summary([long], "1 world")
    assert "... and 42000 characters" in text
    many = [record([reading(0)], f"a.py::test_{n:0300}") for n in range(3_000)]
    text = job_summary([long, *many], "many worlds")
    assert len(text) <= 200_000
    assert text.count("<details") == text.count("</details>") == 2
    assert "lines left out" in text


def test_properties_are_the_largest_of_any_rank_and_region():
    its = record(
        [
            reading(0, live=(0, 0, 5), calls={"send": (2, 8)}, saved=1),
            reading(1, live=(0, 0, 6), calls={"send": (1, 8)}, saved=2),
            reading(1, "other", live=(0, 0, 4), state={"params": 9_000_000}),
        ]
    )
    assert properties(its) == {
        "shardcheck_peak_bytes": 6,
        "shardcheck_state_bytes": 9_000_000,
        "shardcheck_collectives": 2,
        "shardcheck_wire_bytes": 16,
        "shardcheck_saved_bytes": 2,
    }


def test_what_was_not_measured_is_no_property():
    assert properties(record()) == {}
    memory = MemoryReading(device="cpu")
    assert properties(record([Reading(rank=0, region="test", memory=memory)])) == {}
    assert "shardcheck_peak_bytes" not in properties(record([reading(0)]))
