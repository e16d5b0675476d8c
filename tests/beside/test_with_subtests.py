"""Subtests, pytest's own since 9.0: a failed one in any rank fails the test."""

from __future__ import annotations

import pytest

pytest.importorskip("_pytest.subtests", reason="pytest has subtests since 9.0")

SUBTESTS = """
    import unittest
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def test_all_pass(process_group, subtests, world):
        for number in range(3):
            with subtests.test("part", number=number):
                dist.barrier()
                assert world.size == 2

    def test_one_fails_in_one_rank(process_group, subtests, world):
        for number in range(3):
            with subtests.test("part", number=number):
                dist.barrier()
                assert (world.rank, number) != (1, 2)
        dist.barrier()  # the test goes on after it, on every rank

    def test_fail_in_every_rank(subtests, world):
        for number in range(4):
            with subtests.test(number=number):
                print(f"number {number} in rank {world.rank}")
                assert number % 2

    def test_a_subtest_and_the_test_fail(subtests, world):
        with subtests.test("the part"):
            assert world.size == 5
        raise ValueError("the whole")

    @pytest.mark.xfail(strict=True)
    def test_xfails(subtests, world):
        with subtests.test():
            assert world.rank == 0
        assert world.size == 3

    def test_skips_a_part(subtests, world):
        with subtests.test("skipped"):
            pytest.skip("not this part")
        assert world.size == 2

    class TestCase(unittest.TestCase):
        def test_passes(self):
            for number in range(2):
                with self.subTest(number=number):
                    self.assertEqual(dist.is_available(), True)

        def test_fails(self):
            for number in range(3):
                with self.subTest(number=number):
                    self.assertNotEqual(number, 1)

    def test_the_next_passes(process_group):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def session(run_session):
    return run_session({"test_subtests.py": SUBTESTS}, "-rA")


def test_results(session):
    def worst(words: list[str]) -> str:
        return "FAILED" if "FAILED" in words else words[0]

    assert {name: worst(words) for name, words in session.results.items()} == {
        "test_all_pass[world2]": "PASSED",
        "test_one_fails_in_one_rank[world2]": "FAILED",
        "test_fail_in_every_rank[world2]": "FAILED",
        "test_a_subtest_and_the_test_fail[world2]": "FAILED",
        "test_xfails[world2]": "XFAIL",
        "test_skips_a_part[world2]": "PASSED",
        "TestCase.test_passes[world2]": "PASSED",
        "TestCase.test_fails[world2]": "FAILED",
        "test_the_next_passes[world2]": "PASSED",
    }
    assert session.returncode == pytest.ExitCode.TESTS_FAILED


def test_the_failed_part_and_its_rank_are_shown(session):
    failure = session.failure("test_one_fails_in_one_rank[world2]")
    assert "rank 1 of 2 failed in its call" in failure
    assert "assert (1, 2) != (1, 2)" in failure
    assert "[part]" in failure
    assert "number=2" in failure


def test_equal_parts_are_folded_and_each_is_shown(session):
    failure = session.failure("test_fail_in_every_rank[world2]")
    assert "ranks 0-1 of 2 failed in their call" in failure
    assert "contains 2 failed subtests" in failure
    assert "number=0" in failure
    assert "number=2" in failure
    assert "number=1" not in failure
    assert "number 2 in rank 1" in failure


def test_both_failures_are_shown(session):
    failure = session.failure("test_a_subtest_and_the_test_fail[world2]")
    assert "assert 2 == 5" in failure
    assert "ValueError: the whole" in failure


def test_unittests_part(session):
    failure = session.failure("TestCase.test_fails[world2]")
    assert "ranks 0-1 of 2 failed in their call" in failure
    assert "number=1" in failure
