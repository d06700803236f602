"""What is installed, loaded and set: kernel modules, services, versions, clocks, kernel settings."""

from __future__ import annotations

import json
import re

from probe.fact import Missing, Unavailable, mapped, names, parsed, text
from probe.host import Host
from probe.power import said_by
from probe.snapshot import Package, Service, Site, Software

SERVICES = (
    "nvidia-fabricmanager",
    "nvidia-persistenced",
    "nvidia-dcgm",
    "nvidia-imex",
    "opensm",
    "opensmd",
    "chronyd",
    "chrony",
    "systemd-timesyncd",
    "ntpd",
)
MODULES = (
    "nvidia",
    "nvidia_uvm",
    "nvidia_peermem",
    "efa_nv_peermem",
    "nv_peer_mem",
    "nouveau",
    "gdrdrv",
    "nvidia_fs",
    "mlx5_core",
    "ib_core",
    "ipmi_si",
    "ipmi_devintf",
)
PYTHON_PACKAGES = (
    "torch",
    "bitsandbytes",
    "flash_attn",
    "deepspeed",
    "transformers",
    "accelerate",
    "peft",
    "torchtune",
    "nvidia_nccl_cu12",
)


def services(output: str) -> list[Service]:
    """`systemctl show --property=Id,LoadState,ActiveState UNIT...`: a block of `Key=value` lines each."""
    found = []
    for block in output.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" not in values:
            continue
        name = values["Id"].removesuffix(".service")
        absent = values.get("LoadState") == "not-found"
        state: str | Missing = Missing("absent", "no such unit", f"systemctl {name}") if absent else values.get("ActiveState", "unknown")
        found.append(Service(name=name, state=state))
    return found


def version_in(output: str) -> str:
    """The first version number in what a tool says of itself."""
    found = re.search(r"\d+\.\d+(?:\.\d+)*(?:-\d[\w.]*)?", output)
    if not found:
        raise ValueError
    return found[0]


def chosen(setting: str) -> str:
    """`always [madvise] never` → `madvise`."""
    found = re.search(r"\[(\w+)\]", setting)
    if not found:
        raise ValueError
    return found[1]


def _tool(host: Host, argv: list[str]) -> str | Missing:
    return parsed(said_by(host, argv), argv[0], version_in)


def _library(host: Host, name: str) -> str | Missing:
    """The version in the target of a library's link: `libnccl.so.2` → `libnccl.so.2.21.5`."""
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"):
        try:
            return parsed(host.link(f"{folder}/{name}"), name, lambda target: target.split(".so.", 1)[1])
        except Unavailable:
            continue
    return Missing("absent", "not installed", name)


def _cuda(host: Host) -> str | Missing:
    path = "/usr/local/cuda/version.json"
    return parsed(text(host, path), path, lambda content: str(json.loads(content)["cuda"]["version"]))


def _python_packages(host: Host, environment: str | None) -> list[Package]:
    """The versions of the training libraries in a Python environment, from the names of their `.dist-info` folders."""
    if not environment:
        return []
    library = next((name for name in names(host, f"{environment}/lib") if name.startswith("python3")), None)
    folders = names(host, f"{environment}/lib/{library}/site-packages") if library else []
    found = {}
    for folder in folders:
        name, _, rest = folder.partition("-")
        if folder.endswith(".dist-info") and name.lower() in PYTHON_PACKAGES:
            found[name.lower()] = rest.removesuffix(".dist-info")
    missing = Missing("absent", "not in this environment", environment)
    return [Package(name=name, version=found.get(name, missing)) for name in PYTHON_PACKAGES[:6]]


def probe(host: Host, site: Site) -> Software:
    """The facts about software."""
    loaded = text(host, "/proc/modules")
    shown = said_by(host, ["systemctl", "show", "--property=Id,LoadState,ActiveState", *(f"{name}.service" for name in SERVICES)])
    synchronized = said_by(host, ["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    return Software(
        modules=mapped(
            loaded,
            lambda content: sorted({line.split()[0] for line in content.splitlines() if line.split()[:1] and line.split()[0] in MODULES}),
        ),
        services=[Service(name=name, state=shown) for name in SERVICES] if isinstance(shown, Missing) else services(shown),
        packages=[
            Package(name="fabric manager", version=_tool(host, ["nv-fabricmanager", "--version"])),
            Package(name="CUDA toolkit", version=_cuda(host)),
            Package(name="NCCL", version=_library(host, "libnccl.so.2")),
            Package(name="OFED", version=_tool(host, ["ofed_info", "-s"])),
            Package(name="DCGM", version=_tool(host, ["dcgmi", "--version"])),
            Package(name="container toolkit", version=_tool(host, ["nvidia-ctk", "--version"])),
            *_python_packages(host, site.python_environment),
        ],
        clock_source=text(host, "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        clock_synchronized=parsed(mapped(synchronized, str.strip), "timedatectl", lambda word: {"yes": True, "no": False}[word]),
        transparent_hugepages=parsed(text(host, "/sys/kernel/mm/transparent_hugepage/enabled"), "transparent_hugepage", chosen),
        numa_balancing=parsed(text(host, "/proc/sys/kernel/numa_balancing"), "numa_balancing", lambda value: int(value) != 0),
        dmabuf_supported=_dmabuf(host),
    )


def _dmabuf(host: Host) -> bool | Missing:
    """GPUDirect RDMA over dma-buf needs the open kernel modules (NVIDIA GPUDirect documentation) and Linux 5.12."""
    nvrm = text(host, "/proc/driver/nvidia/version")
    release = parsed(
        text(host, "/proc/sys/kernel/osrelease"), "osrelease", lambda value: tuple(int(part) for part in re.findall(r"\d+", value)[:2])
    )
    if isinstance(nvrm, Missing):
        return nvrm
    return release if isinstance(release, Missing) else "Open Kernel Module" in nvrm and release >= (5, 12)
