"""What the kernel can do to shut a candidate in: the system calls behind the levels (Linux, ctypes).

Runs only inside the zygote and its children, never in the parent. `docs/sandbox.md` says what each level covers.
"""

import ctypes
import os
import sys

from glyph.executor import seccomp

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
INSIDE_ID = 1000
FIRST_USER, USERS = 61184, 4000
"""User ids that Linux distributions leave for dynamic users; a zygote that is root takes a pair of them."""
SCRATCH = "/tmp"
_STAGE = "/proc"  # where the new root is mounted before it becomes the root: it always exists and holds no source


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


def be_first_to_go() -> None:
    """When memory runs out, let the kernel kill the sandbox rather than the harness."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # no /proc, or a read-only one


def claim_user() -> tuple[int, object]:
    """A user id, the next one with it, that no other zygote has; it is ours while the returned object lives."""
    import socket

    for user in range(FIRST_USER, FIRST_USER + USERS, 2):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0glyph-executor-user-{user}")  # the kernel drops the name with its holder
        except OSError:
            claim.close()
            continue
        return user, claim
    raise OSError("no free user id")


def become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


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
        become(FIRST_USER + os.getpid() % USERS)
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
        pass  # /proc/sys may be read-only in a container; the filter of system calls refuses new namespaces too
    os.close(proc)


def fresh_scratch() -> None:
    """An empty, small, writable folder at SCRATCH, and an empty IPC namespace: nothing of the last test is left."""
    mount("tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,nr_inodes=1024,mode=0700")
    _call("unshare", CLONE_NEWIPC)


def drop_scratch() -> None:
    _call("umount2", SCRATCH.encode(), MNT_DETACH)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> None:
    """Give up every capability for good."""
    header, nothing = _CapabilityHeader(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if _libc.syscall(SYS_CAPSET[os.uname().machine], ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def give_up_privileges() -> None:
    """No new privileges by any program, and none of the calls that `seccomp` refuses."""
    if sys.platform == "linux":
        prctl(PR_SET_NO_NEW_PRIVS, 1)
    if seccomp.available():
        seccomp.install()


def children() -> list[int]:
    """Our direct children, orphans of a test included where we are their subreaper."""
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def _write(folder: int, name: str, text: str) -> None:
    handle = os.open(name, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _build_root() -> None:
    needed = _needed_paths()
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", _STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    for path in needed:
        _bind(path)
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
    libraries = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"]
    wanted = [*libraries, "/dev/null", sys.executable, *_standard_library(), *_own_libraries()]
    return list(dict.fromkeys(path for path in wanted if os.path.exists(path)))


def _standard_library() -> list[str]:
    return [path for path in sys.path if path.startswith(os.path.dirname(os.__file__))]


def _own_libraries() -> list[str]:
    """Shared libraries from elsewhere that this interpreter runs on, such as its own libpython."""
    with open("/proc/self/maps") as file:
        paths = {line.split(None, 5)[5].strip() for line in file if line.count("/") > 1}
    return sorted(path for path in paths if os.path.basename(path).startswith("libpython"))


def _foreign_packages() -> list[str]:
    """Every folder of installed packages below what a candidate may see."""
    homes = [*_standard_library()]
    for library in ("/usr/lib", "/usr/local/lib"):
        names = os.listdir(library) if os.path.isdir(library) else []
        homes += [f"{library}/{name}" for name in names if name.startswith("python")]
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
    devices = 0 if path == "/dev/null" else MS_NODEV
    kept = os.statvfs(path).f_flag & MS_NOEXEC
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | devices | kept)
