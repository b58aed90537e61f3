"""What a node's GPUs say of themselves, through NVIDIA's library; run there, by the environment.

Its text is sent to the node and run by the Python that workers run with, which has nvidia-ml-py
where `make install` made it; it prints one line of JSON. Nothing is asked of a node without a GPU.

Names: https://docs.nvidia.com/deploy/nvml-api/
"""

import json

# Of the clocks' event reasons, those that mean trouble: a GPU that idles, or is at the power limit
# it should have, has others.
SLOWED = {
    0x08: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}


def describe(nvml):  # type: ignore[no-untyped-def]
    """A record for each GPU; what one does not know of itself is None."""
    driver = nvml.nvmlSystemGetDriverVersion()
    count = nvml.nvmlDeviceGetCount()
    return [_gpu(nvml, index, driver) for index in range(count)]


def _gpu(nvml, index, driver):  # type: ignore[no-untyped-def]
    device = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name, *more):  # type: ignore[no-untyped-def]
        try:
            return getattr(nvml, name)(device, *more)
        except (AttributeError, nvml.NVMLError):  # an older driver, or a GPU that has no such thing
            return None

    ecc = ask("nvmlDeviceGetEccMode")
    uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    memory = ask("nvmlDeviceGetMemoryInfo")
    rows = ask("nvmlDeviceGetRemappedRows")
    retired = ask("nvmlDeviceGetRetiredPages", nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    processes = ask("nvmlDeviceGetComputeRunningProcesses") or []
    return {
        "index": index,
        "name": _text(ask("nvmlDeviceGetName")),
        "driver": _text(driver),
        "ecc": None if ecc is None else bool(ecc[0]),
        "ecc_errors": ask("nvmlDeviceGetTotalEccErrors", uncorrected, nvml.NVML_VOLATILE_ECC),
        "retired_pages": None if retired is None else len(retired),
        "retirement_pending": bool(ask("nvmlDeviceGetRetiredPagesPendingStatus")),
        "remapped_rows": None if rows is None else int(rows[1]),  # after uncorrectable errors
        "remap_pending": bool(rows and rows[2]),
        "remap_failed": bool(rows and rows[3]),
        "clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "max_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        "slowed": [text for bit, text in SLOWED.items() if reasons and reasons & bit],
        "celsius": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "power_limit_mw": ask("nvmlDeviceGetEnforcedPowerLimit"),
        "default_power_mw": ask("nvmlDeviceGetPowerManagementDefaultLimit"),
        "memory_bytes": None if memory is None else int(memory.total),
        "used_bytes": None if memory is None else int(memory.used),
        "processes": [_process(one) for one in processes],
    }


def _process(one):  # type: ignore[no-untyped-def]
    try:
        with open("/proc/%d/cmdline" % one.pid, "rb") as file:
            name = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:  # of a container, or ended
        name = ""
    return {"pid": one.pid, "used_bytes": one.usedGpuMemory, "name": name[:60]}


def _text(name):  # type: ignore[no-untyped-def]
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def main():  # type: ignore[no-untyped-def]
    try:
        import pynvml
    except ImportError:
        print(json.dumps({"missing": "nvidia-ml-py"}))
        return
    try:
        pynvml.nvmlInit()
        print(json.dumps({"gpus": describe(pynvml)}))
    except pynvml.NVMLError as error:
        print(json.dumps({"failed": str(error)}))


if __name__ == "__main__":
    main()
