"""A filter of system calls that code in a cage may not use.

It refuses the calls that container engines refuse by default, for the same reasons: they reach
beyond a namespace, hold memory that no limit counts, or are a large part of the kernel's surface
that Python does not need. Calls newer than the list are refused too, as if they did not exist.
"""

from __future__ import annotations

import ctypes
import os
import struct

from vibe_llms.interpreter import linux

# fmt: off
#: Refused calls, with their numbers on x86_64 and aarch64; 0 if the machine lacks the call.
REFUSED: dict[str, tuple[int, int]] = {
    # The kernel's keyrings, which no process namespace hides.
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Memory that belongs to no process: no limit of a process applies to it.
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmctl": (31, 195), "shmat": (30, 196), "shmdt": (67, 197),
    "semget": (64, 190), "semctl": (66, 191), "semop": (65, 193), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgctl": (71, 187), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_getsetattr": (245, 185),
    # Other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    # Namespaces and mounts.
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41),
    "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "statmount": (457, 457), "listmount": (458, 458),
    # Large parts of the kernel that only special programs use.
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "vmsplice": (278, 75),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "personality": (135, 92),
    # The machine as a whole.
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "lookup_dcookie": (212, 18),
    "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "iopl": (172, 0), "ioperm": (173, 0),
    "nfsservctl": (180, 42), "uselib": (134, 0), "ustat": (136, 0), "modify_ldt": (154, 0),
}
# fmt: on
_CLONE, _CLONE3, _SOCKET, _MMAP = (56, 220), (435, 435), (41, 198), (9, 222)
#: Newest call that was considered: listns of Linux 6.19.
_NEWEST = 470
#: Names of machines in linux/audit.h; both store the low half of an argument first.
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEW_SPACES = 0x7E020000
_HIDDEN_MEMORY = 0x21  # MAP_SHARED | MAP_ANONYMOUS
_HUGE_PAGES = 0x40000
#: Families of sockets: of files, of the cage's own network, and for listing its interfaces.
_UNIX, _INTERNET, _INTERNET_6, _NETLINK = 1, 2, 10, 16

# Source: linux/bpf_common.h, linux/seccomp.h and asm-generic/errno.h.
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NOT_PERMITTED, _NO_MEMORY, _NO_CALL, _NO_FAMILY = 1, 12, 38, 97
_SET_SECCOMP, _FILTER = 22, 2


def is_known() -> bool:
    """Return True if there is a filter for this machine."""
    return os.uname().machine in _MACHINES


def filter_calls(*, sockets: bool = True) -> None:
    """Refuse these calls for this process and its descendants; raise `OSError` if that fails.

    Without `sockets`, it cannot create any, so it has no network.
    """
    code = produce_filter(os.uname().machine, sockets=sockets)
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    packed = ctypes.create_string_buffer(program, len(program))
    linux.control(_SET_SECCOMP, _FILTER, ctypes.addressof(packed))


def produce_filter(machine: str, *, sockets: bool = True) -> bytes:
    """Return the program of the filter, in the instructions of classic BPF."""
    which = list(_MACHINES).index(machine)
    numbers = sorted({pair[which] for pair in REFUSED.values()} - {0})
    code = [
        *_unless(_MACHINE, _EQUAL, _MACHINES[machine], _KILL),
        # Calls of the old x32 interface have far greater numbers.
        *_when(_ABOVE, _NEWEST, _NO_CALL),
        *(step for number in numbers for step in _when(_EQUAL, number, _NOT_PERMITTED)),
        *_when(_EQUAL, _CLONE3[which], _NO_CALL),
    ]
    # Each of these checks arguments, and ends the program.
    code += _check_call(_CLONE[which], _check_argument(0, _ANY_BIT, _NEW_SPACES, _NOT_PERMITTED))
    code += _check_call(
        _MMAP[which],
        [
            *_check_argument(3, _ANY_BIT, _HUGE_PAGES, _NO_MEMORY),
            _load(_ARGUMENTS + 3 * 8),
            (_AND, 0, 0, _HIDDEN_MEMORY),
            *_when(_EQUAL, _HIDDEN_MEMORY, _NO_MEMORY),
        ],
    )
    families = [step for one in (_UNIX, _INTERNET, _INTERNET_6) for step in _allow(one)]
    some = [
        _load(_ARGUMENTS),
        *families,
        (_EQUAL, 1, 0, _NETLINK),
        _refuse(_NO_FAMILY),
        # Of netlink, only NETLINK_ROUTE (0) is allowed, to list interfaces.
        *_check_argument(2, _ABOVE, 0, _NO_FAMILY),
    ]
    code += _check_call(_SOCKET[which], some if sockets else [_refuse(_NOT_PERMITTED)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("@HBBI", *step) for step in code)


#: An instruction: its code, the numbers of steps to skip if true and if false, and its operand.
_Step = tuple[int, int, int, int]


def _load(offset: int) -> _Step:
    return (_LOAD, 0, 0, offset)


def _refuse(error: int) -> _Step:
    return (_RETURN, 0, 0, _ERROR | error)


def _unless(offset: int, how: int, value: int, action: int) -> list[_Step]:
    return [_load(offset), (how, 1, 0, value), (_RETURN, 0, 0, action), _load(_NUMBER)]


def _when(how: int, value: int, error: int) -> list[_Step]:
    return [(how, 0, 1, value), _refuse(error)]


def _allow(value: int) -> list[_Step]:
    return [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]


def _check_argument(argument: int, how: int, value: int, error: int) -> list[_Step]:
    return [_load(_ARGUMENTS + argument * 8), *_when(how, value, error)]


def _check_call(number: int, steps: list[_Step]) -> list[_Step]:
    return [(_EQUAL, 0, len(steps) + 1, number), *steps, (_RETURN, 0, 0, _ALLOW)]
