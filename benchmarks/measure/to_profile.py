#!/usr/bin/env python3
"""Puts measured rates into the hardware profiles.

    python3 benchmarks/measure/to_profile.py          (rewrites hwprofiles/ from results/)
    python3 benchmarks/measure/to_profile.py --check   (exit 1 if that would change anything)

GPUs have the rates of the executor's own kernels: profiles of `zeroplan hw measure`,
results/hw_measure_1x_h200.json and hw_measure_4x_h100.json, of which the latter has the H100's links, too. The
H200's links and a host's copies are from measure_collectives.py and measure_gpu.py. Of their rows only some are
taken; the others are held out, for the cost model to be judged on:

    copies (PCIe)   4, 64 and 1024 MiB
    collectives     on 2 GPUs the sizes not in COLLECTIVE_BYTES; everything on 4 GPUs
    overlap         the products with k of 4096, which the power limit already slows when alone

The cost model's formulas are judged on what PyTorch reached on an H200 and an H100 (h200_gpu.json,
h100_gpu.json), with a part of these rows as its profile: tests/cost_models/measured_rows.h says which.

For another GPU: measure, put the result beside the others, add a line to main().
"""
import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "measure" / "results"
PROFILES = ROOT / "hwprofiles"
KIB, MIB, GIB = 2**10, 2**20, 2**30

COPY_MIB = (1, 16, 256)
COLLECTIVE_BYTES = (16 * KIB, 256 * KIB, 4 * MIB, 64 * MIB, 256 * MIB, GIB)
OVERLAP_K = 1600
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


def collective_table(measured):
    rows = [[row["op"], measured["world_size"], row["bytes"], microseconds(row["seconds"])]
            for row in measured["collectives"] if row["bytes"] in COLLECTIVE_BYTES]
    ranks = 8
    for size, bus in BUS_GBPS_8_GPUS.items():
        for op, gbps in bus.items():
            passes = 2 if op == "all_reduce" else 1
            seconds = passes * size * (ranks - 1) / ranks / (gbps * 1e9)
            rows.append([op, ranks, size, microseconds(seconds)])
    rows.sort(key=lambda row: (row[1], row[0], row[2]))
    return table("us", f"2 GPUs: NCCL {measured['nccl']}, measure_collectives.py; 8 GPUs: from the "
                 "bus bandwidth of NCCL 2.28 on one 8 x H200 host; NVLS off",
                 ["op", "world_size", "bytes", "time"], rows)


def overlap(field, cap=None):
    shares = []
    for world in (2, 4):
        for row in result(f"h200_collectives_{world}.json")["overlap"]:
            if row["k"] == OVERLAP_K:
                shares.append(row[f"{field}_alone_seconds"] / row[f"{field}_overlapped_seconds"])
    if cap is not None:
        shares = [min(cap, share) for share in shares]
    return round(statistics.median(shares), 3)


def figure(value, unit, reference, **more):
    return {"value": value, "unit": unit, **more, "source": "measured", "reference": reference}


def put_gpu(gpu, measured):
    """What `hw measure` measures of a GPU; its names and memory stay the data sheet's."""
    for key in ("launch_overhead", "copy_bandwidth", "gemm", "attention", "kernels", "power"):
        gpu[key] = measured[key]
    gpu.pop("memory_kernels", None)  # `kernels` has each by itself
    for dtype, peak in measured["peaks"].items():
        gpu["peaks"][dtype]["reachable"] = peak["reachable"]


def put_measured_link(link, measured):
    for key in ("overlapped_compute", "overlapped_collective", "collectives"):
        link[key] = measured[key]


def put_copies(machine):
    measured = result("h200_gpu.json")
    where = f"measure_gpu.py, {measured['gpu']}"
    machine["pcie"]["copies"] = copy_table(measured, where)


def put_link(link):
    what = (f"measure_collectives.py on 2 and 4 x H200, products with k = {OVERLAP_K}: median of "
            "time alone / time side by side")
    link["overlapped_compute"] = figure(overlap("gemm", cap=1), "ratio", what)
    link["overlapped_collective"] = figure(overlap("collective"), "ratio", what)
    link["collectives"] = collective_table(result("h200_collectives_2.json"))


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

    h100, h200 = result("hw_measure_4x_h100.json"), result("hw_measure_1x_h200.json")
    update(PROFILES / "gpus" / "h200-141gb-sxm.json", lambda gpu: put_gpu(gpu, h200["gpu"]))
    update(PROFILES / "gpus" / "h100-80gb-sxm.json", lambda gpu: put_gpu(gpu, h100["gpu"]))
    update(PROFILES / "links" / "nvlink4-h200.json", put_link)
    update(PROFILES / "links" / "nvlink4-h100.json", lambda link: put_measured_link(link, h100["link"]))
    update(RESULTS / "vm_8x_h200.json", put_copies)
    print("changed:", ", ".join(changed) or "nothing")
    return 1 if changed and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
