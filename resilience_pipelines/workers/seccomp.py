"""A seccomp filter that takes io_uring away from a process and all that it starts.

CRIU can't dump a process that holds an io_uring ring, and libuv (in uvloop and in torch's TCPStore)
opens one unless the kernel says that it has no such calls. The filter answers ENOSYS to the three.

What belongs here: that filter. What does not: starting a program behind it (`supervisor`), and any
other confinement of a worker (`space`).
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

# These numbers are the same on every architecture but alpha.
IO_URING_CALLS: Final = (425, 426, 427)  # io_uring_setup, io_uring_enter, io_uring_register

_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2
_RET_ERRNO: Final = 0x00050000
_RET_ALLOW: Final = 0x7FFF0000
_X32_BIT: Final = 0x40000000  # the x32 calls of x86-64 have the same numbers with this bit set

_LOAD_WORD: Final = 0x20
_AND: Final = 0x54
_JUMP_EQUAL: Final = 0x15
_RETURN: Final = 0x06


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jump_true", ctypes.c_uint8),
        ("jump_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def filter_program() -> tuple[tuple[int, int, int, int], ...]:
    """The filter as BPF instructions (code, jump if true, jump if false, operand).

    Everything is allowed but the io_uring calls, which fail with ENOSYS, as on a kernel built
    without them: libraries then use epoll.
    """
    refuse_distance = len(IO_URING_CALLS)
    return (
        (_LOAD_WORD, 0, 0, 0),  # seccomp_data.nr
        (_AND, 0, 0, 0xFFFFFFFF & ~_X32_BIT),
        *(
            (_JUMP_EQUAL, refuse_distance - index, 0, number)
            for index, number in enumerate(IO_URING_CALLS)
        ),
        (_RETURN, 0, 0, _RET_ALLOW),
        (_RETURN, 0, 0, _RET_ERRNO | errno.ENOSYS),
    )


def refuse_io_uring() -> None:
    """Install the filter for this process and all that it starts. It can't be taken back.

    Raises:
        OSError: the kernel has no seccomp filters.
    """
    instructions = filter_program()
    array = (_Instruction * len(instructions))(*(_Instruction(*parts) for parts in instructions))
    program = _Program(len(instructions), array)
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    # Without this an unprivileged process may not install a filter.
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero), "no_new_privs")
    _check(
        libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program)),
        "seccomp",
    )


def _check(failed: int, what: str) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
