"""Frameworks that we know ourselves, by the same hooks as any other plugin. No torch here."""
