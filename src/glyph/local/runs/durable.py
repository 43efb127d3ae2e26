"""What has to outlast a kill or a power cut: exclusive locks, and files that reach the disk before they count.

Knows nothing of runs or checkpoints.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_POLL_SECONDS = 0.02
_held: set[int] = set()


def _drop_in_child() -> None:
    """A forked child shares its parent's lock and would keep it alive after the parent's death."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)


class FileLock:
    """An exclusive flock on a file, held until `release` or the death of this process, whatever kills it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, timeout_seconds: float = 0.0) -> bool:
        """Take the lock and write process and host into its file; False where another holds it. Raises: OSError."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return False
                time.sleep(_POLL_SECONDS)
            except OSError:  # a file system without locks
                os.close(descriptor)
                raise
        self._descriptor = descriptor
        _held.add(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return True

    def holder(self) -> str:
        """Who took the lock last, for a message."""
        try:
            return self.path.read_text().strip() or "another process"
        except OSError:
            return "another process"

    def release(self) -> None:
        if self._descriptor is not None:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path]) -> None:
    """`sync` for several at once: the disk takes them together."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(sync, paths))


def write_durably(path: Path, content: str | bytes) -> Path:
    """As `files.write_atomically`, and on the disk when it returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(partial)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)
    return path


def append_durably(path: Path, content: bytes) -> None:
    """Append and wait for the disk; a failed write is taken back, so that no half of it stays. Raises: OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        before = os.fstat(descriptor).st_size
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)
