"""What the kernel can do to shut a candidate in: the levels, and the system calls behind them (Linux, ctypes).

Runs only inside the zygote and its children, never in the parent. `docs/sandbox.md` says what each level covers.
"""

import ctypes
import os
import sys
import sysconfig
from enum import Enum

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
ADDR_NO_RANDOMIZE = 0x0040000
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
INSIDE_ID = 1000
SCRATCH = "/tmp"
_STAGE = "/proc"  # where the new root is mounted before it becomes the root: it always exists and holds no source


class Level(str, Enum):
    """Isolation levels, best first.

    NAMESPACES: own user, process, mount, network and IPC namespaces with a read-only root of the interpreter only.
    USER: root without namespaces: a user id of its own, so no reading of root's files and no signals to others.
    PROCESS: resource limits, an own session, and the killing of every descendant; files and network are open.
    """

    NAMESPACES = "namespaces"
    USER = "user"
    PROCESS = "process"


_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _text(path: str | None) -> bytes | None:
    return None if path is None else path.encode()


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    _call("mount", _text(source), _text(target), _text(kind), ctypes.c_ulong(flags), _text(data))


def prctl(option: int, value: int) -> None:
    _call("prctl", option, ctypes.c_ulong(value), 0, 0, 0)


OWN_USER_ID = 61184 + os.getpid() % 4000
"""A user id that nobody else has, from the range that Linux distributions leave for dynamic users; the zygote's."""


def fix_addresses() -> None:
    """Restart this interpreter without address randomisation, so that `id()` order is the same in every process."""
    if sys.platform != "linux" or os.environ.get("GLYPH_FIXED") == "1":
        return
    persona = _libc.personality(ctypes.c_ulong(0xFFFFFFFF))
    if persona == -1 or _libc.personality(ctypes.c_ulong(persona | ADDR_NO_RANDOMIZE)) == -1:
        return  # a container's filter may refuse it; results then may differ only where they depend on addresses
    os.environ["GLYPH_FIXED"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def enter_namespaces() -> None:
    """Move this process into fresh namespaces with a read-only root. The next fork is process 1 of its own world.

    Raises:
        OSError: the kernel or a container's policy refuses one of the steps.
    """
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    world = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    as_root = os.geteuid() == 0
    if as_root:  # root builds the root folder, then gives up being root before anything else
        _call("unshare", CLONE_NEWNS)
        _build_root()
        _become(OWN_USER_ID)
        prctl(PR_SET_DUMPABLE, 1)
    user, group = os.geteuid(), os.getegid()
    _call("unshare", world)
    _write(proc, "self/setgroups", "deny")
    _write(proc, "self/uid_map", f"{INSIDE_ID} {user} 1")
    _write(proc, "self/gid_map", f"{INSIDE_ID} {group} 1")
    if not as_root:
        _build_root()
    try:
        _write(proc, "sys/user/max_user_namespaces", "0")
    except OSError:
        pass  # /proc/sys may be read-only in a container; a nested user namespace still cannot leave this root
    os.close(proc)


def fresh_scratch() -> None:
    """An empty, small, writable folder at SCRATCH, and an empty IPC namespace: nothing of the last test is left."""
    mount("tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,nr_inodes=1024,mode=0700")
    _call("unshare", CLONE_NEWIPC)


def drop_scratch() -> None:
    _call("umount2", SCRATCH.encode(), MNT_DETACH)


def drop_capabilities() -> None:
    """Give up every capability for good."""

    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]

    header, nothing = Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if _libc.syscall(SYS_CAPSET[os.uname().machine], ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def become_own_user() -> None:
    _become(OWN_USER_ID)


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _write(folder: int, name: str, text: str) -> None:
    handle = os.open(name, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _build_root() -> None:
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", _STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    for folder in _needed_paths():
        _bind(folder)
    for folder in _foreign_packages():
        if os.path.isdir(_STAGE + folder):
            mount("tmpfs", _STAGE + folder, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=0555")
    os.makedirs(_STAGE + SCRATCH, exist_ok=True)
    os.mkdir(_STAGE + "/.old")
    pivot = SYS_PIVOT_ROOT[os.uname().machine]
    if _libc.syscall(pivot, _STAGE.encode(), (_STAGE + "/.old").encode()) != 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir("/")
    _call("umount2", b"/.old", MNT_DETACH)
    os.rmdir("/.old")
    mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _needed_paths() -> list[str]:
    """The interpreter, its standard library and the shared libraries: all that a candidate may see."""
    library = sysconfig.get_path("stdlib")
    wanted = [
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/etc/ld.so.cache",
        "/dev/null",
        sys.executable,
        library,
        sysconfig.get_path("platstdlib"),
    ]
    shared = sysconfig.get_config_var("LIBDIR")
    if shared:
        wanted += [os.path.join(shared, name) for name in _listing(shared) if name.startswith("libpython")]
    return list(dict.fromkeys(path for path in wanted if path and os.path.exists(path)))


def _listing(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _foreign_packages() -> list[str]:
    library = sysconfig.get_path("stdlib")
    homes = [library, "/usr/lib/python3", f"/usr/local/lib/python{sys.version_info[0]}.{sys.version_info[1]}"]
    return [f"{home}/{name}" for home in dict.fromkeys(homes) for name in ("site-packages", "dist-packages")]


def _bind(path: str) -> None:
    target = _STAGE + path
    if os.path.lexists(target):
        return
    if os.path.islink(path) and os.path.dirname(path) == "/":  # /lib -> usr/lib
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    mount(path, target, None, MS_BIND | MS_REC)
    kept = os.statvfs(path).f_flag & MS_NOEXEC
    mount(
        None,
        target,
        None,
        MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | (0 if path == "/dev/null" else MS_NODEV) | kept,
    )
