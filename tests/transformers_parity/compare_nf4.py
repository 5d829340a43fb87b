#!/usr/bin/env python3
"""NF4 by bitsandbytes and by zeroplan's convert kernel, from the same fp32 numbers.

    python3 tests/transformers_parity/compare_nf4.py build/release/tests/transformers_parity/nf4_blocks

- codes: those of quantize_4bit. Its middles on the CPU are a last place off those of its CUDA kernel,
  which zeroplan has: codes may differ by 1 where |x / maximum - middle| <= 1e-7;
- maxima: from bitsandbytes' maxima in fp32, zeroplan's means and largest distances from them follow
  bit by bit. 8-bit codes are all those of quantize_blockwise, given zeroplan's mean of each 256,
  where bitsandbytes takes one of a whole tensor. That is bitsandbytes' rule in torch; its library
  for CPUs looks codes up in a table of 2^16 places instead, so that its codes may lie further off,
  by that;
- dequantized numbers in fp32, bf16 and fp16: bit by bit those of dequantize_4bit of zeroplan's codes
  and nested maxima.

Exit code 1 where something differs; 77 where a package is missing.
"""
import functools
import subprocess
import sys

from models import SKIP, torch

try:
    import bitsandbytes.functional as bnb
    import numpy
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(SKIP)

GROUP, GROUPS = 64, 256
BLOCK = GROUP * GROUPS
BLOCK_TYPE = numpy.dtype([("codes", "u1", BLOCK // 2), ("maxima", "u1", GROUPS), ("scale", "f4"),
                          ("offset", "f4"), ("unused", "u4", 2)])
NEAR = 1e-7
TABLE_STEP = 2**-16
# bitsandbytes' quantize_blockwise for devices that it has no library for.
IN_TORCH = functools.partial(torch.ops.bitsandbytes.quantize_blockwise.default._op_dk,
                             torch._C.DispatchKey.CompositeExplicitAutograd)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def by_zeroplan(program, numbers):
    """Blocks, and what they stand for in each of DTYPES."""
    out = subprocess.run([program], input=numbers.numpy().tobytes(), stdout=subprocess.PIPE,
                         check=True).stdout
    n, blocks = numbers.numel(), -(-numbers.numel() // BLOCK)
    at = blocks * BLOCK_TYPE.itemsize
    made, back = numpy.frombuffer(out[:at], BLOCK_TYPE), {}
    for dtype in DTYPES:
        back[dtype] = torch.frombuffer(bytearray(out[at:at + n * dtype.itemsize]), dtype=dtype)
        at += n * dtype.itemsize
    assert at == len(out), (at, len(out))
    return made, back


def codes_of(packed):
    return torch.stack([packed >> 4, packed & 15], dim=-1).flatten()


def same_bits(a, b):
    return a.shape == b.shape and bool((a.view(torch.uint8) == b.view(torch.uint8)).all())


def compare(program, name, numbers):
    n = numbers.numel()
    blocks, back = by_zeroplan(program, numbers)
    packed = torch.from_numpy(blocks["codes"].reshape(-1).copy())
    maxima = torch.from_numpy(blocks["maxima"].copy())
    scales = torch.from_numpy(blocks["scale"].copy())
    offsets = torch.from_numpy(blocks["offset"].copy())

    theirs, state = bnb.quantize_4bit(numbers, blocksize=GROUP, quant_type="nf4")
    groups = -(-n // GROUP)
    absmax = state.absmax
    a, b = codes_of(packed)[:n].int(), codes_of(theirs.flatten())[:n].int()
    values = state.code.double()
    middles = (values[1:] + values[:-1]) / 2
    at = (a != b).nonzero().flatten()
    scaled = numbers[at].double() / absmax[at // GROUP].double()
    off = (scaled - middles[torch.minimum(a, b)[at].long()]).abs()
    good = bool(((a - b)[at].abs() == 1).all()) and bool((off <= NEAR).all())

    # Maxima of groups of zeros are left out: they are 0 beside a mean of 0.
    whole = torch.zeros(len(blocks) * GROUPS)
    whole[:groups] = absmax
    whole = whole.view(-1, GROUPS)
    live = whole != 0
    means = (whole.double().sum(1) / live.sum(1).clamp(min=1)).float()
    left = torch.where(live, whole - means[:, None], 0)
    dynamic = bnb.create_dynamic_map()
    nested, nested_scales = IN_TORCH(left, dynamic, GROUPS)
    seen = live & (scales != 0)[:, None]
    differing = int((nested != maxima)[seen].sum())
    good = good and differing == 0
    good = good and same_bits(means, offsets) and same_bits(nested_scales, scales)
    by_library = bnb.quantize_blockwise(left, blocksize=GROUPS)[0]
    scaled = (left / scales[:, None])[seen].double()
    theirs_off, ours_off = ((scaled - dynamic[codes[seen].int()].double()).abs()
                            for codes in (by_library, maxima))
    further = theirs_off - ours_off
    others = int((by_library != maxima)[seen].sum())
    good = good and bool((further >= -NEAR).all()) and bool((further <= 2 * TABLE_STEP).all())

    # bitsandbytes' state of the same codes and maxima: its offsets are added afterwards, so that it
    # needs one offset a tensor only.
    nested = bnb.dequantize_blockwise(maxima.flatten(), absmax=scales, code=dynamic, blocksize=GROUPS)
    nested += offsets.repeat_interleave(GROUPS)
    same = {}
    for dtype in DTYPES:
        ours = bnb.QuantState(absmax=nested[:groups].contiguous(), shape=torch.Size([n]), dtype=dtype,
                              blocksize=GROUP, code=state.code, quant_type="nf4")
        given = packed[:-(-n // 2)].contiguous().reshape(-1, 1)
        same[dtype] = same_bits(bnb.dequantize_4bit(given, ours).flatten(), back[dtype])
    good = good and all(same.values())
    print(f"{name}: {n} numbers, {len(at)} codes at a middle, {differing} maxima differ "
          f"({others} in the library's table); dequantized "
          + ", ".join(f"{str(dtype)[6:]} {'same' if ok else 'OTHER'}" for dtype, ok in same.items())
          + f": {'agree' if good else 'DIFFER'}", flush=True)
    return good


def main():
    program = sys.argv[-1]
    random = torch.manual_seed(3)

    def normal(n, std):
        return torch.randn(n, generator=random) * std

    some_zero = normal(5 * BLOCK, 0.02)
    some_zero[700:3000] = 0
    some_zero[BLOCK:2 * BLOCK] = 0
    outliers = normal(4 * BLOCK, 0.02)
    outliers[::7777] = 40
    heavy = torch.distributions.StudentT(3.0).sample((40 * BLOCK,)) * 0.01
    cases = {
        "normal": normal(4096 * 4096, 0.02),
        "normal, in bf16": normal(1024 * 4096, 0.05).bfloat16().float(),
        "heavy tails": heavy,
        "uniform": torch.rand(64 * BLOCK, generator=random) - 0.5,
        "tail": normal(3 * BLOCK + 4321 * 2, 0.02),
        "odd tail": normal(BLOCK + 1001, 0.02),
        "one number": normal(1, 0.02),
        "some zero": some_zero,
        "outliers": outliers,
        "zeros": torch.zeros(2 * BLOCK),
    }
    good = [bnb.create_dynamic_map().shape == (256,)]
    good += [compare(program, name, numbers) for name, numbers in cases.items()]
    sys.exit(0 if all(good) else 1)


main()
