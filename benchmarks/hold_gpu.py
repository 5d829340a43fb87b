#!/usr/bin/env python3
"""Holds a GPU to less memory than it has: takes the rest, so that what runs beside it meets the end.

    python3 benchmarks/hold_gpu.py 25.3GB -- zeroplan train ...   # one command within 25.3 GB

Whoever runs beside it finds that much free, CUDA's context of its own included, as on a card whose
usable memory that is. The rest is one allocation of a process that does nothing. A GPU that is no
larger than that, within 5 %, is left as it is. Standard library and NVIDIA's driver only;
CUDA_VISIBLE_DEVICES counts. Exit code: the command's; 2 if the memory cannot be held.
"""
import argparse
import ctypes
import json
import re
import subprocess
import sys

UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}


class NotHeld(Exception):
    pass


def parse_bytes(text):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(MB|GB|MiB|GiB)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 25.3GB or 23.6GiB")
    return int(float(match[1]) * UNITS[match[2]])


class Driver:
    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NotHeld(f"no NVIDIA driver: {error}") from None
        self.call("cuInit", 0)

    def call(self, name, *args):
        status = getattr(self.library, name)(*args)
        if status != 0:
            raise NotHeld(f"{name}: CUDA error {status}")

    def total(self, gpu):
        device, total = ctypes.c_int(), ctypes.c_size_t()
        self.call("cuDeviceGet", ctypes.byref(device), gpu)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        return total.value

    def use(self, gpu):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), gpu)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def memory(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def take(self, count):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))


def take_all_but(limit, gpu):
    """What is taken then of the GPU, in bytes, by this process or others."""
    driver = Driver()
    if driver.total(gpu) <= 1.05 * limit:
        return 0
    driver.use(gpu)
    free, _ = driver.memory()
    if free < limit:
        raise NotHeld(f"GPU {gpu} has {free} bytes free, fewer than {limit}")
    driver.take(free - limit)
    free, total = driver.memory()
    return total - free


class Held:
    """A GPU held to `limit` bytes for as long as the context is open; `taken`: what of it is not for
    whoever runs beside."""

    def __init__(self, limit, gpu=0):
        self.limit, self.gpu = limit, gpu

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, __file__, "--hold", str(self.limit),
                                         "--gpu", str(self.gpu)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        answer = json.loads(self.process.stdout.readline() or '{"error": "ended"}')
        if "error" in answer:
            self.__exit__()
            raise NotHeld(answer["error"])
        self.taken = answer["taken"]
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def hold(limit, gpu):
    """Until standard input ends, also when whoever started this is gone."""
    try:
        print(json.dumps({"taken": take_all_but(limit, gpu)}), flush=True)
    except NotHeld as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 2
    sys.stdin.read()
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("limit", nargs="?", type=parse_bytes, help="such as 25.3GB")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what runs within it")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold is not None:
        return hold(args.hold, args.gpu)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.limit is None or not command:
        parser.error("give a size and a command")
    try:
        with Held(args.limit, args.gpu):
            return subprocess.run(command, check=False).returncode
    except NotHeld as error:
        print(f"hold_gpu.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
