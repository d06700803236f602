"""The NVIDIA driver: loaded, of one version, and answering."""

from __future__ import annotations

from checks.finding import Verdict, check, failed, known, not_applicable, or_none, passed, unknown, warned
from checks.node import Node, once
from probe.fact import Missing

NO_DRIVER = ("DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND")
MISMATCH = "LIB_RM_VERSION_MISMATCH"


@check(
    "driver.loaded",
    component="driver",
    title="NVIDIA driver loaded",
    per=once,
    weight=3,
    source="nvmlInit return codes (NVML API reference)",
)
def loaded(_: Node, node: Node) -> Verdict:
    """NVML must start where the PCI bus has an NVIDIA GPU.

    Read: the result of nvmlInit in a child process, `/proc/driver/nvidia/version`, and the GPUs in `/sys/bus/pci/devices`.
    Fails when a GPU is there and the driver or its library is not. Without a GPU there is nothing to drive.
    """
    driver = node.snapshot.driver
    error = driver.init_error
    module = or_none(driver.module_version)
    if error is None and not isinstance(driver.driver_version, Missing):
        return passed(f"driver {or_none(driver.driver_version) or module or 'of unknown version'}")
    if not node.pci_gpus and error in NO_DRIVER:
        known(node.snapshot.pci)
        return not_applicable("there is no NVIDIA GPU on the PCI bus")
    gpus = f"{len(node.pci_gpus)} NVIDIA GPU{'s' if len(node.pci_gpus) > 1 else ''} on the PCI bus"
    evidence = [f"nvmlInit: {error}", gpus, f"kernel module: {module or driver.module_version}"]
    if error == "LIBRARY_NOT_FOUND" and module:
        return failed(
            f"kernel module {module} is loaded, but libnvidia-ml.so.1 is not found",
            evidence=evidence,
            fix=f"install the user-space part of driver {module} (in a container: start it with the NVIDIA runtime, --gpus all)",
        )
    if error in NO_DRIVER:
        return failed(
            f"{gpus}, but no driver is loaded",
            evidence=evidence,
            fix="install the NVIDIA data-center driver and reboot; if it is installed: sudo modprobe nvidia && dmesg | grep -i nvrm",
        )
    if error == MISMATCH:
        return passed(f"kernel module {module or 'loaded'} (see driver.version)")
    if error == "NO_PERMISSION":
        missing = Missing("no_permission", "nvmlInit: NO_PERMISSION", "/dev/nvidia*")
        return unknown(missing, fix="run readiness as root, or let the user open /dev/nvidia* (ls -l /dev/nvidia*)")
    if error is None:
        return unknown(Missing("timeout", driver.broken_off, "nvmlInit") if driver.broken_off else node.no_gpu_seen)
    return failed(
        f"NVML does not start: {error}",
        evidence=evidence,
        fix="sudo dmesg | grep -iE 'nvrm|xid' tells why; then reload the driver or reboot",
    )


@check(
    "driver.version",
    component="driver",
    title="Driver, kernel module and library of one version",
    per=once,
    weight=2,
    source="NVML_ERROR_LIB_RM_VERSION_MISMATCH (NVML API reference)",
)
def version(_: Node, node: Node) -> Verdict:
    """The loaded kernel module and the NVML library must be of the same version.

    They differ after an update of the packages without a reboot: running jobs go on, new ones fail. Read: nvmlInit, nvmlSystemGetNVMLVersion,
    `/sys/module/nvidia/version`.
    """
    driver = node.snapshot.driver
    fix = (
        "reboot; or stop all that uses the GPUs (jobs, nvidia-persistenced, fabric manager, DCGM, display) and reload: "
        "sudo modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia; sudo modprobe nvidia"
    )
    module = driver.module_version
    if driver.init_error == MISMATCH:
        loaded = or_none(module) or "of another version"
        return failed(
            f"the loaded kernel module ({loaded}) and the library differ: a driver update waits for a reboot",
            evidence=[f"nvmlInit: {MISMATCH}", f"kernel module: {loaded}"],
            fix=fix,
        )
    if driver.init_error in NO_DRIVER:
        return not_applicable("no driver is loaded")
    library = known(driver.library_version)
    if isinstance(module, Missing):
        return passed(f"library {library}; NVML started with it")
    if module != library:
        return warned(
            f"kernel module {module}, library {library}: a reboot is pending", evidence=[f"/sys/module/nvidia/version: {module}"], fix=fix
        )
    return passed(f"all {module}")


@check(
    "driver.responsive",
    component="driver",
    title="Driver answers in time",
    per=once,
    weight=3,
    source="a healthy sweep takes well under a second; other monitors give up after 5 to 45 s",
)
def responsive(_: Node, node: Node) -> Verdict:
    """Every NVML call must return.

    Read: the sweep in a child process. Fails when a call never returned or ended the process, and names the call and the GPU; warns when
    the sweep took more than 3 s (without persistence mode the driver starts each GPU anew, which takes 1 to 2 s a GPU).
    """
    driver = node.snapshot.driver
    if driver.broken_off:
        return failed(
            f"the driver hangs or crashes: {driver.broken_off}",
            evidence=[driver.broken_off],
            fix="drain the node; sudo nvidia-bug-report.sh --safe-mode; reboot (a GPU reset asks the same driver, and may hang as well)",
        )
    if driver.init_error is not None:
        return not_applicable("NVML did not start")
    seconds = known(driver.sweep_seconds)
    if seconds > node.thresholds.nvml_sweep_seconds:
        return warned(
            f"all calls took {seconds:.1f} s",
            measured=seconds,
            unit="s",
            evidence=[f"NVML sweep: {seconds} s, usual is below {node.thresholds.nvml_sweep_seconds:g} s"],
            fix="enable persistence (sudo systemctl enable --now nvidia-persistenced) and look for Xids: sudo dmesg | grep -i xid",
        )
    return passed("all calls returned", evidence=[f"NVML sweep: {seconds} s"])


CHECKS = [loaded, version, responsive]
