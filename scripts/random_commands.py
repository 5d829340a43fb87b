"""Random command lines of zeroplan over the settings of how to train, for compare_answers.py.

A scenario has 1 to 5 commands and the files that they read. Most commands are valid: what goes
together is chosen together. Some contradict a config, a plan or a checkpoint on purpose.
"""
import json
import random
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def table(text):
    """Rows "name percent value...", apart by ";", as (name, probability, values)."""
    rows = [row.split() for row in text.split(";")]
    return [(row[0], int(row[1]) / 100, row[2:]) for row in rows]


# Options. A row without values is a flag.
SMALL = ["gpt2", "gpt2-xl", "llama3.2-1b", "qwen3-0.6b", "smollm2-135m", "qwen2.5-1.5b"]
MODELS = SMALL + ["llama3.1-8b", "mistral-7b-v0.3", "qwen2.5-7b", "gpt2-medium"]
FP8_PROFILES = ["dgx-h100", "hgx-h200", "rtx4090", "8x-l40s"]
PROFILES = FP8_PROFILES + ["rtx3090", "dgx-a100-40gb", "a10g", "dgx-a100-80gb", "l4", "dgx-b200"]
OLD_PROFILES = ["t4", "v100-32gb-sxm2", "2x-rtx3090"]  # two without bf16
HARDWARE = table("""--gpu-memory 15 16GB 24GB 40GiB; --host-memory 10 64GB 512GiB; --network 10 25Gb
    ib-8x400; --intra-node-bandwidth 5 100GB/s; --pinned-limit 5 16GB; --nvme-capacity 10 2TB;
    --nvme-drives 5 2; --gpu-reserve 5 0 2GB; --host-reserve 5 0 8GB; --gpus-per-node 5 1 2""")
BATCH = table("--seq-len 40 128 512 1024; --micro-batch 40 1 2 4; --grad-accum 30 1 2 4")
DTYPES = table("""--dtype 30 bf16 bf16 fp16 fp32; --grad-accum-dtype 12 fp32;
    --communication-dtype 10 fp32""")
STATES = table("--master-weights 12 fp32 split 16bit; --optimizer-states 15 fp32 bf16 8bit")
RUN = table("--deterministic 10; --packing 10 stream documents off")
SAVES = table("--interruptions 20 0.1/h 2/day; --async-save 15 on off")
RECIPE = table("""--compile 25 layers all; --code 35 plain hf hf; --attn 15 sdpa eager flash;
    --param-dtype 10 fp32 bf16; --optim 15 adamw_torch adafactor adamw_bnb_8bit paged_adamw_8bit
    adamw_torch_8bit; --optimizer-in-backward 6; --tiled-mlp 4; --expandable-segments 15""")
LORA = table("""--lora-rank 50 4 8 64; --lora-alpha 30 16; --lora-dropout 20 0.05; --rslora 20;
    --lora-targets 15 all-linear q_proj,v_proj""")
RATES = table("""--lr 40 3e-3 1e-4; --lr-schedule 30 constant linear cosine; --warmup-steps 20 1 2;
    --weight-decay 20 0.1; --max-grad-norm 20 0 0.5; --max-bad-steps 10 3; --seed 20 1 2;
    --skip-loss-spike 10 4; --min-lr 10 1e-5""")
RECOMPUTE = [words.split() for words in [
    "", "", "--checkpointing none", "--checkpointing full",
    "--checkpointing full --offload-activations",
    "--checkpointing selective", "--checkpointing products", "--offload-activations",
    "--checkpointing full --checkpoint-every 2", "--checkpointing full --checkpoint-layers 1",
    "--checkpointing products --checkpoint-layers 1 --checkpointing-above selective",
    "--offload-activation-layers 1"]]
CONFLICTS = [words.split() for words in [
    "--stage 1", "--offload-optimizer cpu", "--checkpointing full", "--micro-batch 3",
    "--dtype fp16", "--master-weights split", "--optimizer-states 8bit", "--shard-group 2",
    "--sequence-ranks 2", "--grad-accum-dtype fp32", "--matmul-dtype fp8", "--seq-len 16",
    "--offload-activations", "--gpus 2", "--method lora",
    "--deterministic", "--global-batch 12", "--checkpointing-above selective",
    "--optimizer-in-backward", "--compile all"]]  # train does not have the last two
# Keys of a DeepSpeed config; docs/config.md explains each.
B = "true false"
CONFIG = table(f"""train_micro_batch_size_per_gpu 60 1 2 4; gradient_accumulation_steps 30 1 2;
    gradient_clipping 40 1.0 0 0.5 true; sequence_parallel_size 4 1 2; bf16.enabled 70 true;
    fp16.loss_scale 5 0 128; fp16.initial_scale_power 10 8 16; fp16.hysteresis 5 2 4;
    fp16.loss_scale_window 5 100; fp16.min_loss_scale 5 1; fp16.consecutive_hysteresis 5 {B};
    bf16.bf16_master_weights_and_grads 6 {B}; bf16.bf16_optimizer_states 4 {B};
    bf16.check_grad_overflow 5 {B}; data_types.grad_accum_dtype 15 fp32; fp32_allreduce 5 {B};
    communication_data_type 8 fp32; prescale_gradients 5 {B}; gradient_predivide_factor 5 2.0;
    gradient_allreduce_op 5 mean avg; zero_optimization.stage 90 0 1 2 2 3 3;
    zero_optimization.reduce_bucket_size 30 5e8 2e7 1000000 auto; optimizer.params.eps 10 1e-6;
    zero_optimization.allgather_bucket_size 20 5e8 2e7; zero_optimization.overlap_comm 40 {B};
    zero_optimization.contiguous_gradients 20 {B}; zero_optimization.reduce_scatter 15 {B};
    zero_optimization.allgather_partitions 10 {B}; zero_optimization.round_robin_gradients 5 {B};
    zero_optimization.sub_group_size 20 1e9 1000000; zero_optimization.cpu_offload 3 {B};
    zero_optimization.stage3_prefetch_bucket_size 20 5e7 0 auto; optimizer.params.lr 40 1e-3 2e-4;
    zero_optimization.stage3_param_persistence_threshold 20 1e5 0 auto; steps_per_print 10 10;
    zero_optimization.stage3_model_persistence_threshold 5 1e6; wall_clock_breakdown 10 {B};
    zero_optimization.stage3_max_live_parameters 20 1e9 1e6; optimizer.params.adam_w_mode 5 true;
    zero_optimization.stage3_max_reuse_distance 20 1e9 0; optimizer.params.bias_correction 5 {B};
    zero_optimization.stage3_gather_16bit_weights_on_model_save 10 {B}; aio.thread_count 5 2;
    zero_optimization.zero_quantized_weights 4 {B}; zero_optimization.mics_shard_size 4 -1 2;
    zero_optimization.zero_quantized_gradients 4 {B}; optimizer.params.betas 30 [0.9,0.95];
    zero_optimization.zero_hpz_partition_size 4 1 2; optimizer.params.weight_decay 30 0.1;
    zero_optimization.offload_optimizer.device 25 none cpu cpu nvme; tensorboard.enabled 5 {B};
    zero_optimization.offload_optimizer.pin_memory 5 {B};
    zero_optimization.offload_param.device 8 none cpu nvme; zero_allow_untested_optimizer 10 {B};
    activation_checkpointing.number_checkpoints 15 1 2; zero_force_ds_cpu_optimizer 5 {B};
    activation_checkpointing.cpu_checkpointing 8 {B}; _zeroplan.master_weights 5 fp32 split 16bit;
    _zeroplan.optimizer_states 5 fp32 bf16 8bit; _zeroplan.shard_group 3 all 2;
    _zeroplan.across_groups 2 replicate optimizer; _zeroplan.checkpointing 7 selective products;
    _zeroplan.checkpoint_layers 5 1 2; _zeroplan.checkpointing_above 4 selective;
    _zeroplan.offload_activations 6 {B}; _zeroplan.offload_activation_layers 4 1;
    _zeroplan.deterministic 5 {B}; _zeroplan.optimizer_in_backward 3 {B};
    _zeroplan.lr_schedule 5 constant linear cosine; _zeroplan.fp8.enabled 4 {B};
    _zeroplan.compile 5 layers all; _zeroplan.code 6 hf liger; _zeroplan.attn 4 flash eager;
    _zeroplan.param_dtype 2 fp32; _zeroplan.optim 3 adamw_bnb_8bit; _zeroplan.tiled_mlp 2 "true";
    _zeroplan.expandable_segments 4 "true"; comment 10 text""")
BAD = table("""train_batch_size 0 7; zero_optimization.stage 0 4; amp.enabled 0 true;
    zero_optimization.overlap_com 0 true; zero_optimization.overlap_comm 0 maybe; unknown_key 0 1;
    optimizer.type 0 Lion; bf16.enabled 0 yes; fp16.enabled 0 true; fp16.auto_cast 0 true;
    zero_optimization.offload_optimizer.ratio 0 2; curriculum_learning.enabled 0 true;
    _zeroplan.master_weights 0 int8; _zeroplan.fp8.recipe 0 rows""")
SCHEDULERS = [{"type": "WarmupLR", "params": {"warmup_num_steps": 2, "warmup_type": "linear"}},
              {"type": "WarmupCosineLR", "params": {"total_num_steps": 8, "cos_min_ratio": .1}},
              {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}},
              {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 4}}]
TINY = {"gpt2": '{"model_type":"gpt2","n_layer":3,"n_embd":32,"n_head":2,"n_positions":32,'
                '"vocab_size":256}',
        "llama": '{"model_type":"llama","num_hidden_layers":2,"hidden_size":32,"vocab_size":256,'
                 '"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":64,'
                 '"max_position_embeddings":32,"rms_norm_eps":1e-5,"hidden_act":"silu"}'}
HELPED = """plan, estimate, explain, why, train, generate, doctor, model list, model show, hw list,
    hw show, hw measure, hw check, config check, config, config schema, checkpoint verify,
    data tokenize, data show, completion""".split(",")


class Scenario:
    """Commands that share a folder, and the files that they find there."""

    def __init__(self, seed, index):
        self.rng = random.Random(f"{seed}/{index}")
        self.name, self.files, self.commands = f"s{index:04}", {}, []
        self.rng.choices(list(KINDS), list(KINDS.values()))[0](self)

    def add(self, *parts):
        self.commands.append([str(word) for part in parts for word in (
            part if isinstance(part, list) else str(part).split())])

    def chance(self, percent):
        return self.rng.random() * 100 < percent

    def pick(self, rows):
        """Some of the options of a table."""
        rows = table(rows) if isinstance(rows, str) else rows
        chosen = [(name, values) for name, share, values in rows if self.chance(100 * share)]
        return [word for name, values in chosen
                for word in [name] + ([self.rng.choice(values)] if values else [])]

    def conflict(self, words, percent=100, trains=False):
        """Maybe an option that `words` does not have, and that may contradict it."""
        free = [option for option in CONFLICTS[:-2 if trains else None] if option[0] not in words]
        return self.rng.choice(free) if self.chance(percent) else []

    def config(self, name, trains=False):
        """Writes a DeepSpeed config. One in ten has a bad value; a third has values "auto"."""
        config, autos, careful = {}, self.chance(33), self.chance(85)
        rows = [row for row in CONFIG if self.chance(100 * row[1])]
        for place, _, values in rows + ([self.rng.choice(BAD)] if self.chance(10) else []):
            *sections, key = place.split(".")
            if trains and key in ("compile", "code", "attn", "optim", "sequence_parallel_size"):
                continue
            section = config
            for part in sections:
                section = section.setdefault(part, {})
            value = self.rng.choice(values)
            try:
                value = json.loads(value)
            except ValueError:
                pass  # a word
            plain = not place.startswith(("_zeroplan", "comment"))
            section[key] = "auto" if autos and plain and self.chance(15) else value
        zero, own = config.get("zero_optimization", {}), config.get("_zeroplan", {})
        if careful:
            stage = zero["stage"] if isinstance(zero.get("stage"), int) else 0
            if stage != 3:
                zero.pop("offload_param", None)
            if stage == 0:
                zero.pop("offload_optimizer", None)
            if stage not in (2, 3) or config.get("gradient_clipping") != 0:
                own.pop("optimizer_in_backward", None)
            if "shard_group" not in own or stage < 2:
                own.pop("across_groups", None)
            if "gradient_accumulation_steps" in config:
                config.setdefault("train_micro_batch_size_per_gpu", 1)
            if "enabled" not in config.get("bf16", {}):
                own.pop("master_weights", None)
                config.pop("bf16", None)
        for offload in [value for value in zero.values() if isinstance(value, dict)]:
            if offload.get("device") == "nvme":
                offload["nvme_path"] = "swap"
        if "params" in config.get("optimizer", {}):
            config["optimizer"].setdefault("type", self.rng.choice(["AdamW", "Adam"]))
            if self.chance(40) and "lr_schedule" not in own:
                config["scheduler"] = self.rng.choice(SCHEDULERS)
        self.files[name] = json.dumps(config, indent=2) + "\n"
        return name

    def cluster(self, models):
        """Model and machine, and the number of GPUs."""
        gpus = self.rng.choice([1, 1, 2, 4, 8, 8, 16])
        words = ["--model", self.rng.choice(models)]
        if self.chance(15):
            words = ["--params", self.rng.choice(["125M", "1B"])]
            words += self.pick("--family 40 gpt2 llama qwen3")
        return words + ["--gpus", gpus] + self.pick(HARDWARE), gpus

    def choice(self, gpus, runtime="zeroplan"):
        """Stage, groups, offload and recompute, mostly those that go together."""
        own = runtime == "zeroplan"
        stage = self.rng.choice({"fsdp2": [2, 3], "ddp": [0]}.get(runtime, [0, 1, 2, 3]))
        words = ["--stage", stage] if self.chance(70) else []
        if words and runtime == "fsdp2" and stage == 3 and self.chance(30):
            words += ["--offload-optimizer", "cpu", "--offload-param", "cpu"]
        elif words and stage > 0 and runtime != "fsdp2":
            words += self.pick("--offload-optimizer 30 cpu cpu none" + " nvme" * own)
            if own and "cpu" in words:
                words += self.pick("--offload-ratio 25 0.5; --pin-memory 20 off")
            if stage == 3 and (own or "cpu" in words):
                words += self.pick("--offload-param 25 cpu none")
            if gpus >= 4 and own:
                words += self.pick("--shard-group 25 2 node all")
                words += ["--across-groups", "optimizer"] if words[-1] == "2" and stage > 1 else []
        if gpus >= 2 and runtime != "ddp":
            words += self.pick("--sequence-ranks 4 2")
        return words + self.rng.choice(RECOMPUTE if own else RECOMPUTE[:5])

    def precision(self, runtime):
        """A profile and the number formats that it has."""
        if self.chance(15) and runtime != "deepspeed":
            words = ["--hw", self.rng.choice(FP8_PROFILES), "--matmul-dtype", "fp8"]
            if runtime == "zeroplan":
                return words + self.pick("--fp8-recipe 20 tensor blocks; --fp8-gradients 25 e5m2")
            return words + ["--compile", "layers"] + self.pick("--float8 60 tensorwise rowwise")
        if self.chance(10) and runtime != "fsdp2":
            return ["--hw", self.rng.choice(OLD_PROFILES)] + self.pick("--dtype 50 fp16")
        words = ["--hw", self.rng.choice(PROFILES)]
        if runtime == "zeroplan":
            return words + self.pick(DTYPES) + self.pick(STATES)
        return words + (self.pick(DTYPES[1:2]) if runtime == "deepspeed" else [])

    def settings(self, runtime, gpus, percent=100):
        """A config, or options in its place."""
        if self.chance(25) and runtime in ("zeroplan", "deepspeed"):
            words = ["--hw", self.rng.choice(PROFILES), "--config", self.config("ds.json")]
            return words + self.conflict(words, 25)
        words = self.choice(gpus, runtime) if self.chance(percent) else []
        words += self.pick(BATCH[1:]) if self.chance(50) else []
        if self.chance(18):
            method = self.rng.choice(["lora", "qlora"])
            words += ["--method", method] + self.pick(LORA)
            words += ["--kbit", "--code", "hf"] if method == "qlora" and runtime == "ddp" else []
            if method == "qlora" and runtime != "zeroplan" and self.chance(50):
                words += ["--quant-storage", self.rng.choice(["uint8", "bf16"])]
            return words + ["--hw", self.rng.choice(PROFILES)]
        return words + self.precision(runtime)

    def recipe(self, words, runtime):
        """Options of another program, mostly those that it, the model and `words` allow."""
        without = {"deepspeed": ["--param-dtype"], "fsdp2": ["--tiled-mlp", "--optim"],
                   "ddp": ["--tiled-mlp"]}.get(runtime, []) if self.chance(90) else []
        without = without + ["--compile"] * ("--method" in words)
        picked = self.pick([row for row in RECIPE if row[0] not in without + words])
        if not {"--code", "gpt2", "gpt2-xl", "gpt2-medium", "--params"} & {*words, *picked}:
            picked += self.pick("--code 20 torchtune torchtitan liger")
        return picked


def estimate(s):
    runtime = s.rng.choice(["zeroplan", "zeroplan", "deepspeed", "fsdp2", "ddp"])
    words, gpus = s.cluster(MODELS)
    words += s.pick("--seq-len 40 128 512 1024; --format 80 text json csv; --out 10 estimate.out")
    words += ["--tokens", "1B"] + s.pick("--gpu-hour-price 40 2.5") if s.chance(30) else []
    words += s.settings(runtime, gpus)
    words += ["--runtime", runtime] if runtime != "zeroplan" or s.chance(10) else []
    foreign = runtime != "zeroplan" or s.chance(2)
    words += s.recipe(words, runtime) if foreign else s.pick(RUN + SAVES)
    s.add("estimate", words)
    if s.chance(40):
        s.add("estimate", words, s.conflict(words))


def plan(s):
    runtime = s.rng.choice(["zeroplan", "zeroplan", "zeroplan", "deepspeed", "fsdp2", "ddp"])
    words, gpus = s.cluster(SMALL)
    words += s.pick("""--seq-len 40 128 512; --format 50 text json; --effort 70 0.1;
        --objective 15 headroom throughput; --tokens 30 1B 300B""")
    words += s.pick(f"--quick {60 if runtime == 'zeroplan' else 95}")
    words += s.settings(runtime, gpus, percent=40)
    if not {"--config", "--micro-batch", "--grad-accum"} & set(words) or s.chance(5):
        words += s.pick(f"--global-batch 80 {2 * gpus} {8 * gpus} 32")
    if runtime == "zeroplan":
        words += s.pick(RUN + SAVES)
        words += s.pick("--explain 10; --allow 10 all split-masters 8bit-states,fp8")
        s.add("plan", words, "--plan-out plan.json", s.pick("--report 10 plan.html"))
        if s.chance(50):
            s.add("explain plan.json", s.pick("--hw 20 dgx-h100; --trace 20 step.json"))
        return
    words += ["--runtime", runtime] + s.recipe(words, runtime)
    if s.chance(60) and runtime != "ddp":
        formats = "torchtitan accelerate" if runtime == "fsdp2" else "deepspeed accelerate"
        words += ["--out", "config.out"] + s.pick(f"--for 80 hf-trainer {formats}")
    s.add("plan", words)


def config(s):
    for name in ("a.json", "b.json"):
        s.add("config check", s.config(name), "--model", s.rng.choice(MODELS), s.pick(
            "--gpus 60 1 2 8; --strict 15; --for 40 deepspeed zeroplan; --dtype 5 bf16 fp16"))


def why(s):
    log = s.rng.choice(sorted((ROOT / "tests/fixtures/why").glob("*.log")))
    s.files[log.name] = log.read_bytes()
    words = s.pick("--format 40 json; --gpus 50 1 2; --checkpointing 30 full; --compile 15 layers")
    if s.chance(85):
        runtime, stage = s.rng.choice([("ddp", "0"), ("deepspeed", s.rng.choice("0123"))])
        words += ["--runtime", runtime, "--stage", stage, "--seq-len", "512", "--micro-batch", "2"]
        words += s.pick("--add 15 runs.jsonl; --code 40 hf plain; --attn 20 sdpa eager")
    s.add("why", log.name, "--model", s.rng.choice(SMALL), "--hw", s.rng.choice(PROFILES), words)


def trained(s, family):
    """The start of a command line of train, and the number of ranks."""
    s.files.update({"model/config.json": TINY[family].encode(),
                    "data.txt": (ROOT / "LICENSE").read_bytes()})
    return "train --data data.txt --threads 1 --no-progress", s.rng.choice([1, 1, 2, 2, 4])


def cpu_settings(s, gpus):
    states = s.pick(STATES)
    dtypes = ["--dtype", "bf16"] if "split" in states or "16bit" in states else s.pick(DTYPES)
    words = s.choice(gpus) + dtypes + states + s.pick(BATCH[1:] + RUN)
    words += s.pick("--matmul-dtype 4 fp8") + s.pick(RATES)
    if "--min-lr" in words and not {"linear", "cosine"} & set(words):
        words += ["--lr-schedule", "cosine"] if "--lr-schedule" not in words else []
    return words + (["--nvme-path", "swap"] if "nvme" in words else [])


def train(s):
    family, model = s.rng.choice(list(TINY)), "model"
    head, gpus = trained(s, family)
    words = s.pick("--validate-every 20 2; --seq-len 20 16")
    if s.chance(15):
        s.add(head, "--model model --save base --steps 1")  # weights that adapters can be of
        model, words = "base", words + ["--method", "lora"] + s.pick(LORA[:4])
    head += f" --model {model} --gpus {gpus} --metrics run."
    head += s.rng.choice(["jsonl", "jsonl", "csv"])
    if s.chance(30):
        other = ["--config", s.config("ds.json", trains=True)]
        other += s.conflict(words + other, 30, trains=True)
    else:
        other = cpu_settings(s, gpus)
    if s.chance(40):
        s.add(head, words, other, "--steps 3")
        return
    save = ["--save", "out", "--async-save", "off"] + s.pick("--save-every 40 2")
    s.add(head, words, other, save, "--steps 2")
    s.add(head, words, other, save, "--steps 4 --resume")
    if s.chance(60):
        changed = s.conflict(words + other, trains=True)
        other = cpu_settings(s, gpus) if s.chance(60) else other + changed
        s.add(head, words, other, save, "--steps 5 --resume",
              s.pick("--allow-change 30 order data seq-len"))
    if s.chance(50):
        s.add(s.rng.choice(["checkpoint verify out",
                            "generate out --prompt The --max-new-tokens 8"]))


def train_plan(s):
    head, gpus = trained(s, "gpt2")
    settings = s.choice(gpus) if s.chance(40) else []
    s.add("plan --model model --quick --plan-out plan.json --gpus", gpus, "--hw", s.rng.choice(
        PROFILES), "--global-batch", gpus * 4, settings, s.pick(DTYPES[1:] + STATES))
    head += " --plan plan.json --backend cpu --metrics run.jsonl --save out"
    head += " --nvme-path swap" * ("nvme" in settings)
    s.add(head, "--steps 2", s.pick(RATES[:4]))
    s.add(head, "--steps 3 --resume", s.pick(RATES[:4]), s.conflict([], 50, trains=True))


def shown(s):
    s.add(s.rng.choice(["", "help", "--help", "model list", "hw list", "completion bash",
                        "config schema config", "config schema plan", "config schema metrics",
                        "model show " + s.rng.choice(MODELS), "hw show " + s.rng.choice(PROFILES)]))
    s.add(s.rng.choice(HELPED), "--help")


KINDS = {estimate: 36, plan: 20, config: 8, why: 6, train: 14, train_plan: 6, shown: 7}
