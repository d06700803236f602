"""NVLink and the NVSwitch fabric."""

from __future__ import annotations

from collections import Counter

from checks.finding import Verdict, amount, check, failed, known, not_applicable, or_none, passed, unknown, warned
from checks.node import Node, each_gpu, once
from probe.fact import Missing
from probe.snapshot import Gpu

BOOT_GRACE_SECONDS = 300


def active_links(gpu: Gpu) -> int | None:
    """How many NVLinks of a GPU are up; None where that cannot be told."""
    links = or_none(gpu.nvlinks)
    if links is None or any(isinstance(link.active, Missing) for link in links):
        return None
    return sum(link.active is True for link in links)


@check(
    "nvlink.links",
    component="nvlink",
    title="All NVLinks up",
    per=each_gpu,
    weight=3,
    source="NVIDIA data sheets: 12 links on A100, 18 on H100, H200, B200; the node's own GPUs",
)
def links(gpu: Gpu, node: Node) -> Verdict:
    """As many NVLinks must be up as the model has on a switched board, and as the other GPUs of the node have.

    Read: nvmlDeviceGetNvLinkState. A GPU with fewer than its siblings fails. All alike below the table is a design (a cloud's partition,
    missing bridges) and warns, none at all on bare metal fails. A card without NVLink, or with a bridge that is not fitted, has nothing to judge.
    """
    if or_none(gpu.mig_enabled):
        return not_applicable("MIG is on")
    present = known(gpu.nvlinks)
    if not present:
        return not_applicable("the card has no NVLink")
    up = active_links(gpu)
    if up is None:
        return unknown(next(link.active for link in present if isinstance(link.active, Missing)))
    counts = [count for count in map(active_links, node.gpus) if count is not None]
    most = max(counts)
    model = node.model(gpu)
    switched = model is not None and model.nvlink == "switch"
    expected = model.nvlinks if model is not None and model.nvlinks and switched else len(present)
    down = [str(link.link) for link in present if link.active is False]
    evidence = [f"{up} of {len(present)} links up" + (f"; down: {', '.join(down)}" if down else "")]
    fix = (
        "sudo dmesg | grep -iE 'nvlink|sxid'; reset all GPUs together (nvidia-smi --gpu-reset) or reboot; if it stays down, call the vendor"
    )
    if up < most:
        return failed(
            f"{up} links up, the other GPUs have {most} (down: {', '.join(down)})",
            measured=up,
            required=most,
            unit="links",
            evidence=evidence,
            fix=fix,
        )
    if not up and not switched:
        return not_applicable("no NVLink bridge is fitted")
    if not up and len(node.gpus) > 1 and not node.is_virtual:
        return failed(
            f"no link is up on any GPU, {model.name if model else 'the model'} has {expected}",
            measured=0,
            required=expected,
            unit="links",
            evidence=evidence,
            fix=fix,
        )
    if up < expected and switched:
        return warned(
            f"{up} links up on every GPU, {model.name if model else 'the model'} has {expected}",
            measured=up,
            required=expected,
            unit="links",
            evidence=evidence,
            fix="is this the cloud's or the board's design? Otherwise restart the fabric manager",
        )
    return passed(f"{amount(up, 'link')} up", measured=up, required=up, unit="links", evidence=evidence)


@check(
    "nvlink.fabric",
    component="nvlink",
    title="NVSwitch fabric up",
    per=each_gpu,
    weight=3,
    source="nvmlGpuFabricInfoV_t (NVML API reference); NVIDIA Fabric Manager User Guide",
    not_supported="the card does not report a fabric",
)
def fabric(gpu: Gpu, node: Node) -> Verdict:
    """A GPU behind NVSwitches must have joined the fabric: state completed, status success, nothing degraded.

    Read: nvmlDeviceGetGpuFabricInfoV. "Not started" means that the fabric manager does not run: CUDA will not start (error 802). "In progress" is
    given 300 s after boot.
    """
    state = known(gpu.fabric.state)
    if state == "not supported":
        return not_applicable("the card is not behind NVSwitches")
    evidence = [f"fabric state {state}, status {or_none(gpu.fabric.status)}, degraded {or_none(gpu.fabric.degraded) or 'nothing'}"]
    fix = "sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager (its version must be the driver's)"
    uptime = or_none(node.snapshot.system.uptime_seconds)
    if state == "in progress" and uptime is not None and uptime < BOOT_GRACE_SECONDS:
        return unknown(
            Missing("timeout", f"still being set up {uptime:.0f} s after boot", "NVML fabric state"), fix="ask again in a few minutes"
        )
    if state != "completed":
        return failed(f"fabric {state}: the fabric manager has not set up this GPU", evidence=evidence, fix=fix)
    if known(gpu.fabric.status) != "success":
        return failed(f"the fabric reports {gpu.fabric.status}", evidence=evidence, fix=fix)
    degraded = or_none(gpu.fabric.degraded) or []
    if degraded:
        return failed(f"the fabric is degraded: {', '.join(degraded)}", evidence=evidence, fix=fix)
    return passed("completed", evidence=evidence)


@check(
    "nvlink.peers",
    component="nvlink",
    title="Every GPU reaches every other over NVLink",
    per=once,
    weight=2,
    source="nvmlDeviceGetP2PStatus, NVML_P2P_CAPS_INDEX_NVLINK",
)
def peers(_: Node, node: Node) -> Verdict:
    """On a switched board each pair of GPUs must report peer-to-peer over NVLink.

    Read: nvmlDeviceGetP2PStatus for every pair. Judged once the fabric is up and only between GPUs that answer: `nvlink.fabric` and
    `gpu.present` tell of the rest.
    """
    switched = [gpu.index for gpu in node.gpus if (model := node.model(gpu)) is not None and model.nvlink == "switch" and active_links(gpu)]
    if not node.gpus and node.has_nvswitch:
        return unknown(node.no_gpu_seen)
    if len(switched) < 2:
        return not_applicable("no switched NVLink")
    if any(or_none(gpu.mig_enabled) for gpu in node.gpus):
        return not_applicable("MIG is on")
    if any(or_none(gpu.fabric.state) in ("not started", "in progress") for gpu in node.gpus):
        return not_applicable("the fabric is not up")
    pairs = [pair for pair in node.snapshot.gpu_pairs if pair.one in switched and pair.other in switched]
    states = [known(pair.p2p_nvlink) for pair in pairs]
    bad = [f"gpu{pair.one}-gpu{pair.other}: {state}" for pair, state in zip(pairs, states, strict=True) if state != "ok"]
    if bad:
        return failed(
            f"{len(bad)} of {len(pairs)} pairs do not reach each other ({bad[0]})",
            measured=len(pairs) - len(bad),
            required=len(pairs),
            unit="pairs",
            evidence=bad[:16],
            fix="nvidia-smi topo -p2p n shows the pairs; restart the fabric manager, reset the GPUs, or reboot",
        )
    return passed(f"all {len(pairs)} pairs", measured=len(pairs), required=len(pairs), unit="pairs", evidence=[str(dict(Counter(states)))])


CHECKS = [links, fabric, peers]
