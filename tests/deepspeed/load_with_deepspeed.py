"""Loads configs that zeroplan wrote with DeepSpeed's own classes, and compares every value.

Usage: load_with_deepspeed.py FOLDER, which holds N.json and N.expected.json (see write_configs.cc).
Configs whose expected.json has "taken" need only load or be refused as that is true or false.
The whole of DeepSpeedConfig runs, with the real torch. Learning rates are those that the optimizer has
before each step of DeepSpeed's own schedule classes.
"""

import json
import math
import pathlib
import sys

import torch

import deepspeed
from deepspeed.runtime import config as ds_config
from deepspeed.runtime import lr_schedules


class DataParallel:
    """Tells DeepSpeedConfig the number of ranks, in place of a process group."""

    def __init__(self, world_size):
        self.world_size = world_size

    def get_data_parallel_world_size(self):
        return self.world_size


def load(path, world_size):
    ds_config.dist.get_rank = lambda *args: 0
    return ds_config.DeepSpeedConfig(str(path), mpu=DataParallel(world_size))


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def compare(name, actual, expected, problems):
    if isinstance(expected, dict):
        for key, value in expected.items():
            got = actual.get(key) if isinstance(actual, dict) else getattr(actual, key)
            compare(f"{name}.{key}", got, value, problems)
        return
    if isinstance(actual, pathlib.Path):
        actual = str(actual)
    if isinstance(expected, float) and actual is not None:
        same = math.isclose(actual, expected, rel_tol=0, abs_tol=0)
    else:
        same = actual == expected
    if not same:
        problems.append(f"{name}: DeepSpeed has {actual!r}, zeroplan {expected!r}")


def learning_rates(config, expected, problems):
    """The rate before step n: as constructed for n = 0, else after the schedule's move number n - 1."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=config.optimizer_params["lr"])
    if config.scheduler_name is None:
        scheduler = None
    else:
        scheduler = getattr(lr_schedules, config.scheduler_name)(optimizer, **config.scheduler_params)
    for step, rate in expected:
        if scheduler is not None and step > 0:
            scheduler.step(step - 1)
        got = optimizer.param_groups[0]["lr"]
        # Doubles both, but not the same order of operations.
        if not math.isclose(got, rate, rel_tol=1e-9, abs_tol=1e-15):
            problems.append(f"lr of step {step}: DeepSpeed has {got!r}, zeroplan {rate!r}")


def refusal(path, world_size):
    """Why DeepSpeed refuses a config, "" where it loads."""
    try:
        load(path, world_size)
    except Exception as error:  # whatever its type
        return f"{type(error).__name__}: {error}"
    return ""


def check(path):
    expected = json.loads(path.with_suffix(".expected.json").read_text())
    if "taken" in expected:
        why = refusal(path, expected["world_size"])
        if expected["taken"] == (not why):
            return []
        zeroplan = "accepts" if expected["taken"] else "refuses"
        return [f"zeroplan {zeroplan} {path.read_text()} for DeepSpeed, which says: {why or 'loaded'}"]
    config = load(path, expected["world_size"])
    problems = []
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                "gradient_clipping"):
        compare(key, getattr(config, key), expected[key], problems)
    compare("zero_optimization", config.zero_config, expected["zero"], problems)
    compare("bf16.enabled", config.bfloat16_config.enabled, expected["bf16"], problems)
    compare("fp16", config.float16_config, expected["fp16"], problems)
    dtype = DTYPES[expected["dtype"]]
    accumulated = ds_config.DtypeEnum(config.grad_accum_dtype).value if config.grad_accum_dtype else dtype
    compare("grad_accum_dtype", accumulated, DTYPES[expected["grad_accum_dtype"]], problems)
    compare("communication_data_type", config.communication_data_type or dtype,
            DTYPES[expected["communication_dtype"]], problems)
    optimizer = dict(expected["optimizer"])
    compare("optimizer.type", config.optimizer_name, optimizer.pop("type"), problems)
    compare("optimizer.params", config.optimizer_params, optimizer, problems)
    compare("number_checkpoints", config.activation_checkpointing_config.number_checkpoints,
            expected["number_checkpoints"], problems)
    learning_rates(config, expected["learning_rates"], problems)
    return problems


def main():
    folder = pathlib.Path(sys.argv[1])
    paths = [p for p in sorted(folder.glob("*.json")) if not p.name.endswith(".expected.json")]
    failed = 0
    for path in paths:
        try:
            problems = check(path)
        except Exception as error:  # what DeepSpeed refuses, whatever its type
            problems = [f"{type(error).__name__}: {error}"]
        failed += bool(problems)
        for problem in problems:
            print(f"{path.name}: {problem}")
    print(f"DeepSpeed {deepspeed.__version__}, torch {torch.__version__}: "
          f"{len(paths) - failed} of {len(paths)} configs load with the same values")
    return 1 if failed or not paths else 0


sys.exit(main())
