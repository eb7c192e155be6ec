"""Restrictions for a decoding process, applied before it sees a byte of the clip.

They take away open files, limit memory and processor time, and forbid all system calls except the few that
arithmetic needs. A hostile clip that takes over the process can then only compute and answer the parent.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import socket
import struct

CONNECTION = 3
"""The only descriptor that a child keeps, besides 0 to 2, which lead to /dev/null."""

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM

# The architecture as the kernel names it to a filter (linux/audit.h), and the calls that are left with their
# numbers there (asm/unistd_64.h, asm-generic/unistd.h).
_SYSTEM_CALLS = {
    "x86_64": (
        0xC000003E,
        {
            "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9,
            "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
            "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25, "madvise": 28, "getpid": 39,
            "sendto": 44, "recvfrom": 45, "exit": 60, "gettimeofday": 96, "gettid": 186,
            "futex": 202, "sched_getaffinity": 204, "restart_syscall": 219, "clock_gettime": 228,
            "exit_group": 231, "getrandom": 318,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "close": 57, "lseek": 62, "read": 63, "write": 64, "ppoll": 73, "fstat": 80,
            "exit": 93, "exit_group": 94, "futex": 98, "clock_gettime": 113,
            "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128,
            "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "gettimeofday": 169,
            "getpid": 172, "gettid": 178, "sendto": 206, "recvfrom": 207, "brk": 214,
            "munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233,
            "getrandom": 278,
        },
    ),
}  # fmt: skip


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, the process that forked it, ends in any way."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the line above
        os._exit(1)


def keep_only(connection: socket.socket) -> socket.socket:
    """Close all descriptors except this one, which becomes `CONNECTION`. Descriptor 1 must be /dev/null."""
    os.dup2(1, 0)
    os.dup2(1, 2)  # libmpg123 prints comments on its input, which an attacker could control
    os.dup2(connection.detach(), CONNECTION)
    os.closerange(CONNECTION + 1, 256)
    return socket.socket(fileno=CONNECTION)


def limit_resources(memory_bytes: int, cpu_seconds: int) -> None:
    """Limit the address space and processor time. New descriptors become impossible, and with them files and
    sockets, and so do core dumps and, unless the process is root, further processes. Open descriptors stay
    usable.
    """
    for what, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 0),  # with more, closing one would make room for a file in its place
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))


def forbid_system_calls() -> bool:
    """Install a seccomp filter that refuses every system call that decoding does not need.

    Returns:
        False if the kernel or the container does not allow the filter. The other limits still hold in that
        case.
    """
    if platform.machine() not in _SYSTEM_CALLS:
        return False
    architecture, calls = _SYSTEM_CALLS[platform.machine()]
    program = _filter(architecture, tuple(calls.values()))
    code = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    return _prctl(_PR_SET_NO_NEW_PRIVS, 1) and _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header)


def can_forbid_system_calls() -> bool:
    """Return True if `forbid_system_calls` can succeed here. This changes nothing."""
    if platform.machine() not in _SYSTEM_CALLS:
        return False
    _prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, 0
    )  # fails with EFAULT (address 0) where filters are allowed
    return ctypes.get_errno() == errno.EFAULT


def _filter(architecture: int, calls: tuple[int, ...]) -> bytes:
    """Build the BPF program. It reads `struct seccomp_data`: the call number at 0, the architecture at 4."""
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    lines = [(load, 0, 0, 4), (jump_if_equal, 0, len(calls) + 1, architecture), (load, 0, 0, 0)]
    lines += [(jump_if_equal, len(calls) - index, 0, call) for index, call in enumerate(calls)]
    lines += [(answer, 0, 0, _REFUSE), (answer, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def _prctl(option: int, *arguments: int | bytes) -> bool:
    padded = [*arguments, *[0] * (4 - len(arguments))]
    words = [ctypes.c_ulong(word) if isinstance(word, int) else ctypes.c_char_p(word) for word in padded]
    return bool(_libc.prctl(option, *words) == 0)


_libc = ctypes.CDLL(None, use_errno=True)
