"""Enable pytest's own fixture for tests of plugins."""

pytest_plugins = ["pytester"]
