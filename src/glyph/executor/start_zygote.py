"""The script that starts a zygote: fix the interpreter's addresses, find the package, run `zygote.main`.

Started by `sandbox.py` with `-S -P`, so that nothing but the standard library is on the path; the package is found
for the zygote's own imports only.
"""

import os
import sys


def fix_addresses() -> None:
    """Restart this interpreter without address randomisation, so that `id()` order is the same in every process."""
    import ctypes

    if sys.platform != "linux" or os.environ.pop("GLYPH_FIXED", ""):
        return
    libc, no_random_addresses = ctypes.CDLL(None), 0x0040000
    persona = libc.personality(ctypes.c_ulong(0xFFFFFFFF))
    if persona == -1 or libc.personality(ctypes.c_ulong(persona | no_random_addresses)) == -1:
        return  # a container's filter may refuse it; results then may differ only where they depend on addresses
    os.environ["GLYPH_FIXED"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    fix_addresses()  # before anything else is loaded
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from glyph.executor.zygote import main

    sys.path.pop(0)
    main()
