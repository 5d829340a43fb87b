"""Loads what zeroplan wrote for transformers' Trainer, accelerate and torchtitan with those packages, and PEFT's adapters with PEFT, bitsandbytes
and TRL.

Usage: load_formats.py FOLDER, which holds the files and N-FORMAT.expected.json (see write_formats.cc).
Nothing is launched: each package's own parser reads its file and the command line that was printed, its
own classes are made of that, and their values compared. Lines for the script are run with a tiny model. The number of processes, which only a running
process group knows, is set by hand.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import types

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
HF_LENGTH = 1234  # a run's steps, where no argument says them


class Problems:
    def __init__(self):
        self.list = []

    def same(self, name, got, expected):
        if got != expected:
            self.list.append(f"{name}: the package has {got!r}, zeroplan {expected!r}")


class Environment:
    """Variables of one launch, taken back afterwards: plugins read them, and some set more."""

    def __init__(self, variables):
        self.variables = {key: str(value) for key, value in variables.items()}

    def __enter__(self):
        self.before = dict(os.environ)
        os.environ.update(self.variables)

    def __exit__(self, *error):
        os.environ.clear()
        os.environ.update(self.before)


class DataParallel:
    def __init__(self, world_size):
        self.world_size = world_size

    def get_data_parallel_world_size(self):
        return self.world_size


def is_mics(expected):
    return expected["shard_group"] > 0 and expected["across_stage"] == 0


def deepspeed_reads(config, expected, problems):
    """What DeepSpeed itself makes of a config in which nothing is open any more."""
    from deepspeed.runtime import config as ds_config
    ds_config.dist.get_rank = lambda *args: 0
    loaded = ds_config.DeepSpeedConfig(config, mpu=DataParallel(expected["world_size"]))
    problems.same("train_batch_size", loaded.train_batch_size, expected["global_batch"])
    problems.same("train_micro_batch_size_per_gpu", loaded.train_micro_batch_size_per_gpu,
                  expected["micro_batch"])
    problems.same("gradient_accumulation_steps", loaded.gradient_accumulation_steps,
                  expected["grad_accum"])
    problems.same("stage", loaded.zero_config.stage, expected["stage"])
    problems.same("reduce_bucket_size", loaded.zero_config.reduce_bucket_size,
                  expected["reduce_bucket_size"])
    for key in ("offload_optimizer", "offload_param"):
        section = getattr(loaded.zero_config, key)
        device = section.device if section is not None else "none"
        problems.same(key, getattr(device, "value", device), expected[key])
    group, mics = expected["shard_group"], is_mics(expected)
    problems.same("mics_shard_size", loaded.mics_shard_size, group if mics else -1)
    problems.same("zero_hpz_partition_size", loaded.zero_config.zero_hpz_partition_size,
                  group if group and not mics else 1)
    problems.same("zero_quantized_weights", loaded.zero_config.zero_quantized_weights,
                  expected["quantized_weights"])
    problems.same("bf16", loaded.bfloat16_config.enabled, expected["dtype"] == "bf16")
    problems.same("fp16", loaded.float16_config.enabled, expected["dtype"] == "fp16")
    return loaded


def open_keys(config, path=""):
    if isinstance(config, dict):
        return [key for name, value in config.items() for key in open_keys(value, f"{path}.{name}")]
    return [path[1:]] if config == "auto" else []


def variables_before(launch):
    """"A=1 torchrun ..." -> {"A": "1"}."""
    found = {}
    for word in shlex.split(launch):
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            break
        found[name] = value
    return found


def training_arguments(expected):
    from transformers import HfArgumentParser, TrainingArguments
    words = [word for argument in expected["arguments"] for word in shlex.split(argument)]
    words += ["--output_dir", tempfile.gettempdir(), "--use_cpu", "--report_to", "none"]

    # Of a process group of that many.
    TrainingArguments.world_size = property(lambda self: expected["world_size"])
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(args=words)
    return arguments


def check_compile(plugin, expected, problems):
    problems.same("compiled", plugin.backend.value.upper(), "INDUCTOR" if expected["compile_layers"] else "NO")
    if expected["compile_layers"]:
        problems.same("regional", plugin.use_regional_compilation, not expected["compile_loss"])


def check_trainer_deepspeed(path, arguments, expected, problems):
    hf_config = arguments.hf_deepspeed_config
    model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=expected["hidden"]))
    steps = arguments.max_steps if arguments.max_steps > 0 else HF_LENGTH
    hf_config.trainer_config_finalize(arguments, model, steps)  # throws where file and arguments differ
    config = hf_config.config
    problems.same("left open", open_keys(config), [])
    loaded = deepspeed_reads(json.loads(json.dumps(config)), expected, problems)
    problems.same("clipping", loaded.gradient_clipping, arguments.max_grad_norm)
    problems.same("lr", loaded.optimizer_params["lr"], arguments.learning_rate)
    problems.same("recompute", arguments.gradient_checkpointing, expected["recompute"])
    written = json.loads(path.read_text())
    for key in ("wandb", "my_launcher"):
        if key in written:
            problems.same(key, config.get(key), written[key])
    said = expected["optimizer"]
    if any(argument.startswith("--learning_rate") for argument in expected["arguments"]):
        problems.same("learning_rate", loaded.optimizer_params["lr"], said["lr"])
        problems.same("betas", list(loaded.optimizer_params["betas"]), said["betas"])
        problems.same("eps", loaded.optimizer_params["eps"], said["eps"])
        problems.same("weight_decay", loaded.optimizer_params["weight_decay"], said["weight_decay"])
        problems.same("gradient_clipping", loaded.gradient_clipping, said["gradient_clipping"])
        problems.same("warmup", loaded.scheduler_params["warmup_num_steps"], said["warmup_steps"])
        problems.same("length", loaded.scheduler_params["total_num_steps"], said["total_steps"])


def check_fsdp2_plugin(plugin, expected, problems):
    problems.same("version", plugin.fsdp_version, 2)
    problems.same("reshard", plugin.reshard_after_forward, expected["stage"] == 3)
    # A policy of either kind for each answer.
    offloads = type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
    problems.same("offload", offloads, expected["offload_param"] == "cpu")
    problems.same("recompute", plugin.activation_checkpointing, expected["recompute"])
    problems.same("wrapping", plugin.auto_wrap_policy.__name__, "transformer_auto_wrap_policy")
    # As AcceleratorState does it.
    plugin.set_mixed_precision(expected["dtype"])
    policy = plugin.mixed_precision_policy
    problems.same("param_dtype", policy.param_dtype, DTYPES[expected["dtype"]])
    problems.same("reduce_dtype", policy.reduce_dtype, DTYPES[expected["dtype"]])


def check_trainer(path, expected, problems):
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils import TorchDynamoPlugin
    with Environment(variables_before(expected["launch"])):
        arguments = training_arguments(expected)
        problems.same("micro-batch", arguments.per_device_train_batch_size, expected["micro_batch"])
        problems.same("accumulation", arguments.gradient_accumulation_steps, expected["grad_accum"])
        problems.same("bf16", arguments.bf16, expected["dtype"] == "bf16")
        problems.same("fp16", arguments.fp16, expected["dtype"] == "fp16")
        # As Trainer.create_accelerator_and_postprocess makes it.
        compiled = {}
        if arguments.torch_compile:
            compiled = {"backend": arguments.torch_compile_backend, "mode": arguments.torch_compile_mode}
        check_compile(TorchDynamoPlugin(**compiled), expected, problems)
        problems.same("liger", arguments.use_liger_kernel, expected["code"] == "liger")
        if arguments.gradient_checkpointing:
            problems.same("reentrant", arguments.gradient_checkpointing_kwargs, {"use_reentrant": False})
        if expected["runtime"] == "DeepSpeed":
            check_trainer_deepspeed(path, arguments, expected, problems)
        elif expected["runtime"] == "DDP":
            problems.same("recompute", arguments.gradient_checkpointing, expected["recompute"])
            problems.same("optim", arguments.optim.value, expected["optim"])
            check_argument_file(path, arguments, problems)
        else:
            problems.same("optim", arguments.optim.value, expected["optim"])
            check_fsdp2_plugin(FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args), expected, problems)


def check_argument_file(path, arguments, problems):
    """The file has what the command line has."""
    from transformers import HfArgumentParser, TrainingArguments
    written = json.loads(path.read_text())
    written.update(output_dir=tempfile.gettempdir(), use_cpu=True)
    (of_file,) = HfArgumentParser(TrainingArguments).parse_dict(written, allow_extra_keys=True)
    for name in json.loads(path.read_text()):
        if name != "_zeroplan":
            problems.same(name, getattr(of_file, name), getattr(arguments, name))


TINY = dict(vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2)


def tiny_model():
    """A folder to load from, made once."""
    from transformers import LlamaConfig, LlamaForCausalLM
    folder = pathlib.Path(tempfile.gettempdir()) / f"zeroplan-formats-{os.getpid()}"
    if not folder.exists():
        LlamaForCausalLM(LlamaConfig(**TINY)).to(torch.bfloat16).save_pretrained(folder)
    return str(folder)


def check_script(expected, problems):
    """The lines for the script, run."""
    scope = {"MODEL": tiny_model(), "LR": 1e-3}
    exec("\n".join(expected["script"]), scope)
    model = scope["model"]
    trained = [p for p in model.parameters() if p.requires_grad]
    own = expected["format"] == "accelerate" and (expected["runtime"] != "DeepSpeed" or expected["own_optim"])
    problems.same("an optimizer", "optimizer" in scope, own)
    if own:
        problems.same("what it trains", sum(len(g["params"]) for g in scope["optimizer"].param_groups), len(trained))
    if not expected["rank"]:
        return
    from peft import PeftModel
    problems.same("an adapted model", isinstance(model, PeftModel), True)
    config = model.peft_config["default"]
    problems.same("rank", (config.r, config.lora_alpha), (expected["rank"], 2 * expected["rank"]))
    linears = 7 if expected["targets"] == "all-linear" else 2
    problems.same("matrices that are trained", len(trained), 2 * linears * TINY["num_hidden_layers"])
    dtypes = {torch.bfloat16 if expected["adapters_in_16_bit"] else torch.float32}
    cast_later = expected["runtime"] == "DeepSpeed" and expected["quantized"]  # by its engine
    if not cast_later:
        problems.same("dtype of adapters", {p.dtype for p in trained}, dtypes)
    kinds = {type(p).__name__ for p in model.parameters()}
    problems.same("quantized", "Params4bit" in kinds, expected["quantized"])
    if expected["format"] == "hf-trainer":
        check_trl(expected, config, problems)


def check_trl(expected, config, problems):
    """TRL's parser reads the same arguments, and makes the same adapters of them."""
    from trl import ModelConfig, SFTConfig, TrlParser, get_peft_config, get_quantization_config
    note = next(n for n in expected["notes"] if "--use_peft" in n)
    words = shlex.split(re.search(r"--use_peft[^.]*(\.\d[^.]*)*", note).group())
    words += [word for argument in expected["arguments"] for word in shlex.split(argument)]
    words += ["--output_dir", tempfile.gettempdir(), "--use_cpu", "--report_to", "none"]
    _, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config(args=words)
    of_trl = get_peft_config(model)
    for name in ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora", "task_type"):
        got = getattr(of_trl, name)
        problems.same(f"TRL's {name}", got, getattr(config, name) if name != "target_modules" else got)
    problems.same("TRL's quantization", get_quantization_config(model) is not None, expected["quantized"])


def check_accumulation(expected, problems):
    """What the script is told to give Accelerator."""
    steps = re.search(r"gradient_accumulation_steps=(\d+)", expected["notes"][-1]).group(1)
    problems.same("accumulation", int(steps), expected["grad_accum"])


def check_mesh(variables, expected, problems):
    from accelerate import ParallelismConfig
    group = expected["shard_group"]
    problems.same("a mesh", variables.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false"), "true" if group else "false")
    if group:
        mesh = ParallelismConfig()  # as Accelerator makes it of these variables
        problems.same("mesh", (mesh.dp_replicate_size, mesh.dp_shard_size, mesh.total_size),
                      (expected["world_size"] // group, group, expected["world_size"]))


def check_accelerate(path, expected, problems):
    from accelerate.commands import launch
    line = expected["launch"].replace(" RANK", " 0").replace(" HOST", " localhost")
    before = variables_before(line)
    words = shlex.split(line)[len(before):]
    problems.same("command", words[:2], ["accelerate", "launch"])
    with Environment(before):
        check_accelerate_launch(launch, words, expected, problems)


def check_accelerate_launch(launch, words, expected, problems):
    from accelerate import DeepSpeedPlugin, FullyShardedDataParallelPlugin
    from accelerate.utils import TorchDynamoPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
    args, defaults, precision_from_file = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(words[2:]))
    problems.same("processes", args.num_processes, expected["world_size"])
    problems.same("hosts", args.num_machines, expected["nodes"])
    deepspeed, ddp = expected["runtime"] == "DeepSpeed", expected["runtime"] == "DDP"
    if ddp:
        problems.same("several GPUs", bool(args.multi_gpu), expected["world_size"] > 1)
        problems.same("precision", args.mixed_precision, "fp8" if expected["float8"] else expected["dtype"])
        if expected["float8"]:
            with Environment(prepare_multi_gpu_env(args)):
                check_float8(expected, problems)
        problems.same("sharded", bool(args.use_fsdp or args.use_deepspeed), False)
        return
    problems.same("deepspeed", bool(args.use_deepspeed), deepspeed)
    problems.same("fsdp", bool(args.use_fsdp), not deepspeed)
    if deepspeed:
        # What launch_command does before it starts processes.
        fields = list(defaults.deepspeed_config)
        if precision_from_file:
            fields.append("mixed_precision")
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, variables = prepare_deepspeed_cmd_env(args)
    else:
        variables = prepare_multi_gpu_env(args)
    with Environment(variables):
        check_compile(TorchDynamoPlugin(), expected, problems)
        if not deepspeed:
            problems.same("precision", variables["ACCELERATE_MIXED_PRECISION"],
                          "fp8" if expected["float8"] else expected["dtype"])
            if expected["float8"]:
                check_float8(expected, problems)
                # With it accelerate refuses torchao.
                problems.same("cpu_ram_efficient_loading",
                              FullyShardedDataParallelPlugin().cpu_ram_efficient_loading, False)
            check_fsdp2_plugin(FullyShardedDataParallelPlugin(), expected, problems)
            check_mesh(variables, expected, problems)
            check_accumulation(expected, problems)
            return
        plugin = DeepSpeedPlugin()
        plugin.set_mixed_precision(args.mixed_precision)
        # MiCS partitions a whole model itself.
        problems.same("zero3_init_flag", plugin.zero3_init_flag,
                      expected["stage"] == 3 and not is_mics(expected))
        # As Accelerator.prepare fills in what DummyOptim and DummyScheduler say.
        plugin.deepspeed_config_process(must_match=False, **{
            "optimizer.params.lr": 0.25, "optimizer.params.weight_decay": 0.5,
            "scheduler.params.warmup_max_lr": 0.25, "scheduler.params.warmup_num_steps": 7,
            "scheduler.params.total_num_steps": 99})
        config = plugin.deepspeed_config
        problems.same("left open", open_keys(config), [])
        config["steps_per_print"] = 1  # accelerate's infinity is no JSON
        loaded = deepspeed_reads(json.loads(json.dumps(config)), expected, problems)
        problems.same("clipping", loaded.gradient_clipping, expected["optimizer"]["gradient_clipping"])


def check_float8(expected, problems):
    """torchao's config as accelerate makes it of the environment that it launches with."""
    from accelerate.utils import AORecipeKwargs
    problems.same("FP8 backend", os.environ["ACCELERATE_FP8_BACKEND"], "AO")
    config = AORecipeKwargs().config
    problems.same("gathers in 8 bits", config.enable_fsdp_float8_all_gather,
                  expected["float8"] == "tensorwise-gathers")
    problems.same("padding", config.pad_inner_dim, False)


def check_torchtitan(path, expected, problems):
    from torchtitan.config.manager import ConfigManager
    words = shlex.split(expected["launch"])
    at = words.index("torchtitan.train")
    config = ConfigManager().parse_args(words[at + 1:])
    training, parallelism = config.training, config.parallelism
    problems.same("local_batch_size", training.local_batch_size, expected["micro_batch"])
    problems.same("seq_len", training.seq_len, expected["seq_len"])
    degree = parallelism.data_parallel_shard_degree * parallelism.data_parallel_replicate_degree
    problems.same("GPUs", degree, expected["world_size"])
    problems.same("shard group", parallelism.data_parallel_shard_degree,
                  expected["shard_group"] or expected["world_size"])
    # As its Trainer reckons it.
    problems.same("accumulation", training.global_batch_size / (training.local_batch_size * degree),
                  expected["grad_accum"])
    problems.same("global batch", training.global_batch_size, expected["global_batch"])
    problems.same("offload", training.enable_cpu_offload, expected["offload_param"] == "cpu")
    problems.same("dtype", training.dtype, "float32")
    problems.same("param", getattr(torch, training.mixed_precision_param), DTYPES[expected["dtype"]])
    problems.same("reduce", training.mixed_precision_reduce, "float32")
    problems.same("reshard", parallelism.fsdp_reshard_after_forward, "always" if expected["stage"] == 3 else "never")
    problems.same("recompute", config.activation_checkpoint.mode, "full" if expected["recompute"] else "none")
    problems.same("compile", config.compile.enable, expected["compile_layers"])
    if expected["compile_layers"]:
        problems.same("compiled", config.compile.components,
                      ["model", "loss"] if expected["compile_loss"] else ["model"])
    recipe, float8 = expected["float8"], config.quantize.linear.float8
    problems.same("converters", config.model.converters, ["quantize.linear.float8"] if recipe else [])
    problems.same("recipe", float8.recipe_name, "rowwise" if recipe == "rowwise" else None)
    problems.same("gathers in 8 bits", float8.enable_fsdp_float8_all_gather, recipe == "tensorwise-gathers")
    problems.same("filtered", float8.filter_fqns, ["output"] if recipe else [])
    problems.same("deterministic", config.debug.deterministic, expected["deterministic"])
    problems.same("optimizer", config.optimizer.name, "AdamW")
    check_torchtitan_parts(config, expected, problems)


def check_torchtitan_parts(config, expected, problems):
    from torchtitan.distributed import ParallelDims
    import torchtitan.protocols.train_spec as train_spec
    parallelism = config.parallelism
    dims = ParallelDims(dp_shard=parallelism.data_parallel_shard_degree,
                        dp_replicate=parallelism.data_parallel_replicate_degree,
                        cp=parallelism.context_parallel_degree, tp=parallelism.tensor_parallel_degree,
                        pp=parallelism.pipeline_parallel_degree, ep=parallelism.expert_parallel_degree,
                        etp=parallelism.expert_tensor_parallel_degree, world_size=expected["world_size"])
    problems.same("fully_shard is used", dims.fsdp_enabled, True)
    problems.same("groups hold replicas", dims.dp_replicate_enabled, expected["shard_group"] > 0)
    model = train_spec.get_train_spec(config.model.name).model_args[config.model.flavor]
    problems.same("layers", model.n_layers, expected["layers"])
    problems.same("width", model.dim, expected["hidden"])


CHECKS = {"hf-trainer": check_trainer, "accelerate": check_accelerate, "torchtitan": check_torchtitan}
FILES = {"hf-trainer": ".json", "accelerate": ".yaml", "torchtitan": ".toml"}


def main():
    import accelerate
    import deepspeed
    import transformers
    from importlib.metadata import version
    folder = pathlib.Path(sys.argv[1])
    failed, counts = 0, dict.fromkeys(CHECKS, 0)
    for path in sorted(folder.glob("*.expected.json")):
        expected = json.loads(path.read_text())
        problems = Problems()
        file = path.with_name(path.name.replace(".expected.json", FILES[expected["format"]]))
        try:
            CHECKS[expected["format"]](file, expected, problems)
            if expected["script"]:
                check_script(expected, problems)
        except (Exception, SystemExit) as error:  # what a package refuses, whatever its type
            problems.list.append(f"{type(error).__name__}: {error}")
        counts[expected["format"]] += 1
        failed += bool(problems.list)
        for problem in problems.list:
            print(f"{file.name}: {problem}")
    loaded = ", ".join(f"{count} for {name}" for name, count in counts.items())
    shutil.rmtree(tiny_model(), ignore_errors=True)
    print(f"transformers {transformers.__version__}, accelerate {accelerate.__version__}, DeepSpeed "
          f"{deepspeed.__version__}, torchtitan {version('torchtitan')}: {loaded}; {failed} with problems")
    return 1 if failed or not all(counts.values()) else 0


sys.exit(main())
