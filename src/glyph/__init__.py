"""PREDICT: reactive and predictive coding agents in one verifier-backed environment.

Exports are lazy: `import glyph.executor` and the sandbox program stay stdlib-only, and Verifiers, which finds
its plugins by the id `glyph`, still reads one Taskset and one Harness from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glyph.harness import GlyphHarness
    from glyph.taskset import GlyphTaskset

__all__ = ["GlyphHarness", "GlyphTaskset"]
__version__ = "0.1.0"

_HOMES = {"GlyphTaskset": "glyph.taskset", "GlyphHarness": "glyph.harness"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'glyph' has no attribute {name!r}")
