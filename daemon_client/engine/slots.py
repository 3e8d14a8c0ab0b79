"""Execution slots of the machine, numbered, taken before any claim is made."""

from __future__ import annotations

import asyncio
import heapq


class SlotPool:
    """`total` numbered slots; the lowest free numbers are given first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, most: int) -> list[int]:
        """Up to `most` free slots; an empty list when none is free. Never waits."""
        return [heapq.heappop(self._free) for _ in range(min(most, len(self._free)))]

    def give_back(self, slot: int) -> None:
        if slot in self._free or not 0 <= slot < self.total:
            raise ValueError(f"slot {slot} was not taken")
        heapq.heappush(self._free, slot)


class ClaimBarrier:
    """Keeps claims and whatever may not run beside them (an update) apart."""

    def __init__(self) -> None:
        self.paused = False
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def try_enter(self) -> bool:
        if self.paused:
            return False
        self.in_flight += 1
        self.idle.clear()
        return True

    def leave(self) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self.idle.set()

    def try_pause(self, active_tasks: int) -> bool:
        """Stop claiming, only if nothing is claimed, being claimed or running."""
        if self.paused or self.in_flight or active_tasks:
            return False
        self.paused = True
        return True

    def resume(self) -> None:
        self.paused = False
