"""A filter of system calls that no solution of a task needs (Linux; the second line behind the isolation level).

Refused: what outlives a process (System V IPC, kernel keyrings), what looks into other processes, new namespaces and
mounts, large parts of the kernel that only attackers call (io_uring, bpf, perf, userfaultfd), sockets (a pair of them
is allowed), a signal to every process at once, and limits on other processes. A refused call fails, as for lack of
rights.
"""

import ctypes
import errno
import os
import struct
import sys
from functools import lru_cache

PR_GET_SECCOMP, PR_SET_SECCOMP, MODE_FILTER = 21, 22, 2
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # REFUSE is completed by an errno
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; of the first argument's low half
CLONE_NEWUSER, EVERYBODY, X32 = 0x10000000, 0xFFFFFFFF, 0x40000000

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's own names of the architectures, in the order of the numbers below."""
REFUSED = {
    "socket": (41, 198),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
}
CLONE, CLONE3, KILL, PRLIMIT = (56, 220), (435, 435), (62, 129), (302, 261)

INSTRUCTION = struct.Struct("=HBBI")
Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand: of classic BPF."""


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def build(machine: str) -> list[Instruction]:
    """The filter for an architecture.

    Raises:
        ValueError: its numbers are not known here.
    """
    column = list(ARCHITECTURES).index(machine)
    refuse = (RETURN, 0, 0, REFUSE | errno.EPERM)
    program = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, ARCHITECTURES[machine]), refuse, (LOAD, 0, 0, NUMBER)]
    program += [(AT_LEAST, 0, 1, X32), refuse] if machine == "x86_64" else []
    for numbers in REFUSED.values():
        program += [(EQUAL, 0, 1, numbers[column]), refuse]
    program += [(EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, REFUSE | errno.ENOSYS)]  # libraries fall back to clone
    program += _by_argument(CLONE[column], (ANY_BIT, 1, 0, CLONE_NEWUSER))
    program += _by_argument(KILL[column], (EQUAL, 1, 0, EVERYBODY))
    program += _by_argument(PRLIMIT[column], (EQUAL, 0, 1, 0))  # its own limits, not those of process 1
    return [*program, (RETURN, 0, 0, ALLOW)]


def _by_argument(number: int, test: Instruction) -> list[Instruction]:
    """Let one call pass or not: the test of its first argument jumps over 0 instructions to allow, 1 to refuse."""
    verdicts = [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    return [(EQUAL, 0, 4, number), (LOAD, 0, 0, ARGUMENT), test, *verdicts]


_libc = ctypes.CDLL(None, use_errno=True)


def available() -> bool:
    return (
        sys.platform == "linux" and os.uname().machine in ARCHITECTURES and _libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0
    )


def install() -> None:
    """Filter this process and all that it starts; needs no_new_privs.

    Raises:
        OSError: the kernel refuses it.
    """
    packed = _packed(os.uname().machine)
    program = _Program(len(packed) // INSTRUCTION.size, packed)
    if _libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


@lru_cache(maxsize=1)
def _packed(machine: str) -> bytes:
    return b"".join(INSTRUCTION.pack(*each) for each in build(machine))
