"""The command `rlcore plan`; light: the modules that it runs are imported on use."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from rlcore.safe_text import write

DEVICES = (
    "devices of each machine and the memory of each, such as 8x80GB; prints the memory of every strategy (run.shard), "
    "and the traffic and time of a round"
)
RATES = (
    ("--peak-flops", "FLOPS", "operations of a device in a second, dense in bfloat16 (default: 989T, an H100)"),
    ("--utilisation", "SHARE", "share of them that matrix products reach (default: 0.4)"),
    ("--memory-bandwidth", "BYTES", "bytes of a device's memory in a second (default: 3.35TB)"),
    ("--intra-bandwidth", "BYTES", "bytes a device sends within its machine in a second (default: 350GB)"),
    ("--inter-bandwidth", "BYTES", "bytes a device sends to other machines in a second (default: 45GB)"),
    ("--overlap", "SHARE", "share of an exchange that computation hides where both go on (default: 0.5)"),
)
"""Options that describe the hardware: option, unit, help."""


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore plan` to its parser, and return the function that runs it."""
    parser.description = (
        "Estimate the memory that a run takes on each device, phase by phase, from its configuration and "
        "without reading weights. If the run does not fit, list changes that save memory."
    )
    parser.add_argument("file", type=Path, metavar="FILE.yaml", help="configuration, as for `rlcore train`")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="an option by its path, such as gen.batch_size=8"
    )
    parser.add_argument(
        "--world", type=_count, metavar="N", help="number of processes, one per device (default: run.processes)"
    )
    parser.add_argument(
        "--device-memory", metavar="SIZE", help="such as 24GB; if omitted, the memory of this machine's device"
    )
    parser.add_argument("--nodes", type=_count, metavar="N", help="number of machines; needs --devices")
    parser.add_argument("--devices", metavar="NxSIZE", help=DEVICES)
    for option, metavar, text in RATES:
        parser.add_argument(option, metavar=metavar, help=text)
    parser.add_argument("--json", action="store_true", help="print JSON, sizes in bytes, with a schema number")
    return _plan


def _plan(arguments: argparse.Namespace) -> int:
    import gc
    import sys

    from rlcore.config import load_yaml, merge, parse_overrides
    from rlcore_tools.plan.sizes import read_devices, read_rates

    devices, rates = read_devices(arguments), read_rates(arguments)
    values = merge(load_yaml(arguments.file), parse_overrides(arguments.overrides))
    where = f"{arguments.file} + command line" if arguments.overrides else str(arguments.file)
    world = devices.world if arguments.world or devices.kind else _processes(values)
    from rlcore_tools.plan.advice import advise, report_as_json, write_report
    from rlcore_tools.plan.cluster import cluster_as_json, plan_cluster, write_cluster
    from rlcore_tools.plan.estimate import device_memory, estimate
    from rlcore_tools.plan.fake_tensors import Heap
    from rlcore_tools.plan.serving import leave_to_servers
    from rlcore_tools.plan.sizes import write_count

    devices = leave_to_servers(devices, values, where)
    world = devices.world if devices.kind else world
    gc.freeze()  # each estimate collects garbage; imported modules need not be searched
    heap = Heap() if devices.kind is None else None
    with redirect_stdout(sys.stderr):  # output of a model's or a user's module
        found = estimate(
            values, where, world=world, nodes=devices.nodes, heap=heap, device=devices.kind,
            memory=devices.limit[0] if devices.limit else 0,
        )  # fmt: skip
        limit, limit_from = devices.limit or device_memory(found.device)
        with heap.closed() if heap is not None else nullcontext():  # measurable only if little has been freed
            advice = advise(values, where, found, limit) if found.peak > limit else []
        cluster = plan_cluster(found, limit, rates) if devices.kind else None
    if arguments.json:
        further = {} if cluster is None else {"cluster": cluster_as_json(cluster)}
        print(report_as_json(found, limit, advice, further))
    else:
        write(write_report(found, limit, limit_from, advice))
        if cluster is not None:
            write("\n" + write_cluster(cluster))
            if (processes := _processes(values)) not in (1, world):
                count = write_count(world, "device")
                write(f"note: run.processes = {processes} starts {processes} processes; the plan is for {count}")
    return 0


def _processes(values: Mapping[str, object]) -> int:
    """Return run.processes of a configuration; 1 if it is another value than a number, which its check names."""
    run = values.get("run")
    found = run.get("processes") if isinstance(run, Mapping) else None
    return found if isinstance(found, int) and found > 0 else 1


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)
