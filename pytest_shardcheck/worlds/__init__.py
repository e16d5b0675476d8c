"""Worlds: N ranks that run one test, and the parent's side of them."""
