"""The windows and limits of the queue, in seconds and counts, read from `settings.MULTICA` at every use.

Nothing else reads that dict, so a test overrides one place and a scaled run scales everything.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings


class Conf:
    """Attribute access to the settings of the queue: `conf.PREPARE_LEASE`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return settings.MULTICA[name]
        except KeyError:
            raise AttributeError(f"no setting MULTICA[{name!r}]") from None


conf = Conf()
