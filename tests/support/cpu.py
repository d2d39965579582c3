"""The CPU that the tests run on."""

from compress.host import describe_host


def saturates() -> bool:
    """Tell whether products of uint8 and int8 overflow here, as they do on x86 CPUs without VNNI."""
    flags = set(describe_host()["cpu_flags"])
    return "avx2" in flags and not flags & {"avx512_vnni", "avx_vnni"}
