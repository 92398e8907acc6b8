"""Whether the run has bounds for the engines of this machine, as a line of the doctor's checklist. Pure.

Attention backend, precision and split are known once a model is loaded. So a class of the run is this machine's if
device and engine agree; `prime-node status` names the class of a loaded engine.
"""

from collections.abc import Sequence

from prime_node.doctor.facts import CoordinatorFacts, MachineReport
from prime_node.engine.machine_class import make_device_slug, make_engine_slug
from prime_runtime.checklist import CheckGrade, CheckResult, make_result


def list_prefixes(examined: MachineReport) -> list[str]:
    """Device and engine of each way in which this machine can run a model, as classes begin."""
    engine = examined.engine
    if engine is None:
        return []
    engines = [make_engine_slug(name, version) for name, version in (("torch", engine.torch), ("vllm", engine.vllm))]
    devices = [make_device_slug(device.name) for device in engine.devices if device.is_good and device.name]
    return [f"{device}/{each}/" for device in dict.fromkeys(devices) for each in engines if each]


def find_classes(prefixes: Sequence[str], classes: Sequence[str]) -> list[str]:
    return [name for name in classes if name.startswith(tuple(prefixes))] if prefixes else []


def check_class(examined: MachineReport, line: CoordinatorFacts) -> CheckResult | None:
    """None where the run does not tell classes apart, or nothing is known of the machine."""
    prefixes = list_prefixes(examined)
    if not line.engine_classes or not prefixes:
        return None
    found, total = find_classes(prefixes, line.engine_classes), len(line.engine_classes)
    own = " or ".join(prefix.rstrip("/") for prefix in prefixes)
    until = "until then the run takes no work of it" if line.is_closed else "until then it is judged by the default"
    return make_result(
        what="engine class",
        found=f"{', '.join(found)}: calibrated" if found else f"{own}: none of the run's {total} classes",
        needed="a class that the run was calibrated for",
        is_good=bool(found),
        advice=f"prime-node calibrate write and read, and send the files to the operator; {until}",
        worst=CheckGrade.MISSING if line.is_closed else CheckGrade.NOTE,
    )
