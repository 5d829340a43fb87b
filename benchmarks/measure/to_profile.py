#!/usr/bin/env python3
"""Puts measured rates into the hardware profiles.

    python3 benchmarks/measure/to_profile.py          (rewrites hwprofiles/ from results/)
    python3 benchmarks/measure/to_profile.py --check   (exit 1 if that would change anything)

GPUs and what joins them have the rates of the executor's own kernels and collectives: profiles of `zeroplan
hw measure`, results/hw_measure_h200.json (two GPUs) and hw_measure_4x_h100.json. Of eight H200s there are
NCCL's tests. The copies of an H200's host are some of what measure_gpu.py timed: those of 4, 64 and 1024 MiB
are held out.

The cost model's formulas are judged on what PyTorch and NCCL reached on H200s and an H100 (h200_gpu.json,
h100_gpu.json, h200_collectives_N.json), with a part of these rows as its profile:
tests/cost_models/measured_rows.h says which.

For another GPU: measure, put the result beside the others, add a line to main().
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "measure" / "results"
PROFILES = ROOT / "hwprofiles"
MIB, GIB = 2**20, 2**30

COPY_MIB = (1, 16, 256)
# Bus bandwidth in GB/s of nccl-tests, NCCL 2.28 without NVLS, one 8 x H200 host.
BUS_GBPS_8_GPUS = {GIB: {"all_reduce": 358, "all_gather": 342, "reduce_scatter": 341},
                   16 * MIB: {"all_reduce": 216, "all_gather": 196, "reduce_scatter": 176}}


def dump(node, indent=0, used=0):
    """JSON as zeroplan writes it: what fits 100 columns, and each row of a table, on one line."""
    if not isinstance(node, (dict, list)) or not node:
        return json.dumps(node, ensure_ascii=False)
    children = node.values() if isinstance(node, dict) else node
    pad = " " * (indent + 2)
    if not any(isinstance(child, (dict, list)) for child in children):
        compact = json.dumps(node, ensure_ascii=False, separators=(",", ":"))
        if isinstance(node, list) or indent + used + len(compact.encode()) < 100:
            return json.dumps(node, ensure_ascii=False)
        *first, last = (json.dumps(key) + ": " + json.dumps(value, ensure_ascii=False)
                        for key, value in node.items())
        return "{" + ", ".join(first) + ",\n" + pad + last + "}"
    if isinstance(node, dict):
        lines = []
        for key, value in node.items():
            label = json.dumps(key) + ": "
            lines.append(pad + label + dump(value, indent + 2, len(label)))
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + dump(v, indent + 2) for v in node) + "\n" + " " * indent + "]"


def four_digits(value):
    return float(f"{value:.4g}")


def result(name):
    return json.loads((RESULTS / name).read_text())


def table(unit, reference, columns, rows):
    return {"unit": unit, "source": "measured", "reference": reference, "columns": columns,
            "rows": rows}


def microseconds(seconds):
    return four_digits(seconds * 1e6)


def copy_table(measured, where):
    sizes = [mib * MIB for mib in COPY_MIB]
    rows = [[row["bytes"], microseconds(row["to_device_seconds"]),
             microseconds(row["from_device_seconds"])] for row in measured["pcie"]
            if row["bytes"] in sizes]
    return table("us", f"pinned host memory, one GPU alone, {where}",
                 ["bytes", "to_device", "from_device"], rows)


def with_eight_gpus(collectives):
    """The table, and what the bus bandwidths say of eight GPUs."""
    rows, ranks = list(collectives["rows"]), 8
    for size, bus in BUS_GBPS_8_GPUS.items():
        for op, gbps in bus.items():
            passes = 2 if op == "all_reduce" else 1
            seconds = passes * size * (ranks - 1) / ranks / (gbps * 1e9)
            rows.append([op, ranks, size, microseconds(seconds)])
    return {**collectives, "rows": rows, "reference": collectives["reference"] +
            "; 8 GPUs: from the bus bandwidth of NCCL 2.28 on one 8 x H200 host, NVLS off"}


def put_gpu(gpu, measured):
    """What `hw measure` measures of a GPU; its names and memory stay the data sheet's."""
    for key in ("launch_overhead", "copy_bandwidth", "gemm", "attention", "kernels", "power"):
        gpu[key] = measured[key]
    gpu.pop("memory_kernels", None)  # `kernels` has each by itself
    for dtype, peak in measured["peaks"].items():
        gpu["peaks"][dtype]["reachable"] = peak["reachable"]


def put_link(link, measured):
    for key in ("overlapped_compute", "overlapped_collective", "collectives"):
        link[key] = measured[key]


def put_h200_link(link, measured):
    put_link(link, measured)
    link["collectives"] = with_eight_gpus(link["collectives"])


def put_copies(machine):
    measured = result("h200_gpu.json")
    where = f"measure_gpu.py, {measured['gpu']}"
    machine["pcie"]["copies"] = copy_table(measured, where)


def main():
    changed = []

    def update(path, put):
        node = json.loads(path.read_text())
        put(node)
        text = dump(node) + "\n"
        if text != path.read_text():
            changed.append(path.name)
            if "--check" not in sys.argv[1:]:
                path.write_text(text)

    h100, h200 = result("hw_measure_4x_h100.json"), result("hw_measure_h200.json")
    update(PROFILES / "gpus" / "h200-141gb-sxm.json", lambda gpu: put_gpu(gpu, h200["gpu"]))
    update(PROFILES / "gpus" / "h100-80gb-sxm.json", lambda gpu: put_gpu(gpu, h100["gpu"]))
    update(PROFILES / "links" / "nvlink4-h200.json", lambda link: put_h200_link(link, h200["link"]))
    update(PROFILES / "links" / "nvlink4-h100.json", lambda link: put_link(link, h100["link"]))
    update(RESULTS / "vm_8x_h200.json", put_copies)
    print("changed:", ", ".join(changed) or "nothing")
    return 1 if changed and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
