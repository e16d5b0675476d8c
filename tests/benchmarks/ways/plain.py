"""A session without a world test."""


def test_nothing():
    pass
