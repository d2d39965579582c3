"""Kill a process, and all that it starts, at its first try to reach the network: native code is watched as well."""

from __future__ import annotations

import ctypes
import platform
import struct

# Numbers of the system calls connect, bind and sendto, and where the length of the address is among their arguments.
_CALLS = {"x86_64": {42: 2, 49: 2, 44: 5}, "aarch64": {203: 2, 200: 2, 206: 5}}
WATCHED = platform.system() == "Linux" and platform.machine() in _CALLS
_ADDRESS_BYTES = (16, 28)  # of IPv4 and IPv6; addresses within the machine have other lengths
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # of BPF
_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def forbid_network() -> None:
    """Install the filter in this process, for good (``preexec_fn`` of :mod:`subprocess`)."""
    steps = []
    for number, argument in _CALLS[platform.machine()].items():
        steps += [(_LOAD, 0, 0, 0), (_EQUAL, 0, 3 + len(_ADDRESS_BYTES), number), (_LOAD, 0, 0, 16 + 8 * argument)]
        steps += [(_EQUAL, len(_ADDRESS_BYTES) - place, 0, size) for place, size in enumerate(_ADDRESS_BYTES)]
        steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _KILL)]
    program = b"".join(struct.pack("HBBI", *step) for step in (*steps, (_RETURN, 0, 0, _ALLOW)))
    kept = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(kept))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or library.prctl(_PR_SET_SECCOMP, _FILTER, described, 0, 0):
        raise OSError(ctypes.get_errno(), "the filter cannot be installed")
