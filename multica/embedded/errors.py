"""Refusals of the launcher. Their text is for the operator: what is wrong and what to do."""

from __future__ import annotations


class EmbeddedError(RuntimeError):
    """Embedded services cannot run here."""


class StackBusy(EmbeddedError):
    """Another process owns the state directory."""


class StartFailed(EmbeddedError):
    """A service was started and ended before it was ready; the text has the end of its log."""
