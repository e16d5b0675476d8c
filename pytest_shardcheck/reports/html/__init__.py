"""Records and timelines → one page that opens without a network."""

from .page import WorldPage, page

__all__ = ["WorldPage", "page"]
