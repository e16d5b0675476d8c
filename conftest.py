"""Settings of this project's own tests."""

import os

pytest_plugins = ["pytester"]

# Some hundred sessions run inside the tests: each would compile this package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
