"""How much of what others sent is held at the same time.

Anybody may send large bodies on hundreds of connections, and a webhook that is killed for its memory arms no pod.
"""

from __future__ import annotations

import threading


class NoRoom(Exception):
    """As much is held as may be."""


class Room:
    """Bytes that may be held at the same time. For any thread."""

    def __init__(self, size: int) -> None:
        self._size = self._left = size
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        return self._size - self._left

    def take(self, size: int) -> None:
        """Raises NoRoom, and takes nothing then."""
        with self._lock:
            if size > self._left:
                raise NoRoom
            self._left -= size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size


class Held:
    """What one body takes of the room, until the last of those that hold it lets go. It begins with one holder."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0
        self._holders = 1
        self._lock = threading.Lock()

    def grow(self, size: int) -> None:
        """Raises NoRoom."""
        self._room.take(size)
        self._size += size

    def share(self) -> None:
        with self._lock:
            self._holders += 1

    def let_go(self) -> None:
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self._room.give_back(self._size)
