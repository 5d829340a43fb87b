"""Runs of transformers' Trainer on one GPU: random weights of a true shape, random tokens.

  trainer_runs.py ROWS.jsonl --out DIR [--only NAME ...]

Each line of ROWS.jsonl is one configuration (Row below); DIR/runs.jsonl gets one line of figures a
row, DIR/NAME.log what the run printed, DIR/NAME.txt what `"explain": true` asks for (see
trainer_explain.py). A row is a process of its own. Those of a batch import at once, and then have
the GPU one after the other, so nothing else runs while steps are timed.
"""
import argparse
import dataclasses
import gc
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import traceback

GIB = 2**30
WARM_UP = 2
BATCH = 32
MODEL_FOLDER = pathlib.Path("/tmp/trainer_models")
CHECKPOINTS = pathlib.Path("/tmp/trainer_checkpoints")


def llama_like(kind, hidden, mlp, layers, heads, kv_heads, vocab, **more):
    return kind, dict(hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
                      num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocab,
                      max_position_embeddings=131072, **more)


def gpt2(layers, hidden, heads):
    return "gpt2", dict(n_layer=layers, n_embd=hidden, n_head=heads, n_positions=1024,
                        vocab_size=50257, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)


MODELS = {
    "llama3.2-1b": llama_like("llama", 2048, 8192, 16, 32, 8, 128256, head_dim=64,
                              tie_word_embeddings=True, rope_theta=500000.0, rms_norm_eps=1e-5),
    "llama3.2-3b": llama_like("llama", 3072, 8192, 28, 24, 8, 128256, head_dim=128,
                              tie_word_embeddings=True, rope_theta=500000.0, rms_norm_eps=1e-5),
    "llama3.1-8b": llama_like("llama", 4096, 14336, 32, 32, 8, 128256, head_dim=128,
                              tie_word_embeddings=False, rope_theta=500000.0, rms_norm_eps=1e-5),
    "qwen2.5-0.5b": llama_like("qwen2", 896, 4864, 24, 14, 2, 151936,
                               tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6),
    "qwen2.5-1.5b": llama_like("qwen2", 1536, 8960, 28, 12, 2, 151936,
                               tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6),
    "qwen3-0.6b": llama_like("qwen3", 1024, 3072, 28, 16, 8, 151936, head_dim=128,
                             tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6),
    "qwen3-1.7b": llama_like("qwen3", 2048, 6144, 28, 16, 8, 151936, head_dim=128,
                             tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6),
    "mistral-7b": llama_like("mistral", 4096, 14336, 32, 32, 8, 32768, sliding_window=None,
                             tie_word_embeddings=False, rope_theta=1e6, rms_norm_eps=1e-5),
    # Types that zeroplan plans and does not train; the last three are shallower than published.
    "gemma-2-2b": llama_like("gemma2", 2304, 9216, 26, 8, 4, 256000, head_dim=256),
    "gemma-3-1b": llama_like("gemma3_text", 1152, 6912, 26, 4, 1, 262144, head_dim=256,
                             sliding_window=512),
    "phi-3-8-layers": llama_like("phi3", 3072, 8192, 8, 32, 32, 32064, pad_token_id=0),
    "mixtral-8-layers": llama_like("mixtral", 1024, 3584, 8, 16, 8, 32000, num_local_experts=8,
                                   num_experts_per_tok=2),
    "qwen3-moe-4-layers": llama_like("qwen3_moe", 2048, 6144, 4, 32, 4, 151936, head_dim=128,
                                     num_experts=128, num_experts_per_tok=8,
                                     moe_intermediate_size=768, norm_topk_prob=True),
    "gpt2": gpt2(12, 768, 12),
    "gpt2-large": gpt2(36, 1280, 20),
    "gpt2-xl": gpt2(48, 1600, 25),
}


@dataclasses.dataclass
class Row:
    name: str
    model: str  # of MODELS, or a model_type of transformers
    seq_len: int = 2048
    micro_batch: int = 1
    grad_accum: int = 1
    weights: str = "bf16"  # what from_pretrained's dtype says: bf16 or fp32
    autocast: bool = True  # TrainingArguments.bf16
    optim: str = "adamw_torch_fused"
    recompute: bool = False  # gradient_checkpointing
    reentrant: bool = None  # None: transformers' own choice
    liger: bool = False
    attention: str = "sdpa"
    compile: bool = False
    deepspeed: dict = None
    fsdp: dict = None
    lora: dict = None  # LoraConfig's arguments, and get_peft_model's autocast_adapter_dtype
    nf4: bool = False  # QLoRA's base: NF4 with double quantization
    kbit: bool = False  # prepare_model_for_kbit_training
    args: dict = dataclasses.field(default_factory=dict)  # further TrainingArguments
    model_config: dict = dataclasses.field(default_factory=dict)  # overrides of the shape
    limit: float = None  # GiB of PyTorch's allocator
    env: dict = dataclasses.field(default_factory=dict)
    steps: int = 6
    load: bool = False  # from_pretrained of a saved folder
    phases: list = dataclasses.field(default_factory=list)  # of evaluate, save, resume
    explain: bool = False
    timeout: int = 150
    figures: dict = dataclasses.field(default_factory=dict)  # carried over, no setting


class Peaks:
    """Peaks of GPU and host memory between two calls. `polls`: of the host's anonymous pages too,
    for which a thread of this process asks every 5 ms."""

    def __init__(self, torch, polls):
        self.cuda, self.polls, self.anonymous = torch.cuda, polls, 0
        if polls:
            threading.Thread(target=self.poll, daemon=True).start()

    def poll(self):
        while True:
            self.anonymous = max(self.anonymous, host_kib("RssAnon"))
            time.sleep(0.005)

    def restart(self):
        self.cuda.synchronize()
        self.anonymous = 0
        self.cuda.reset_peak_memory_stats()
        try:
            pathlib.Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pass
        self.start = time.perf_counter()

    def read(self):
        self.cuda.synchronize()
        free, total = self.cuda.mem_get_info()
        used = used_by_this_process() or total - free
        polled = {"host_anonymous": round(self.anonymous / 2**20, 2)} if self.polls else {}
        return {"allocated": round(self.cuda.max_memory_allocated() / GIB, 4),
                "reserved": round(self.cuda.max_memory_reserved() / GIB, 4),
                "device_used": round(used / GIB, 4),
                "host_rss": round(host_kib("VmHWM") / 2**20, 2), **polled,
                "seconds": round(time.perf_counter() - self.start, 2)}


def host_kib(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


class RandomTokens:
    def __init__(self, torch, count, seq_len, vocab):
        generator = torch.Generator().manual_seed(1)
        self.items = torch.randint(0, vocab, (min(count, 64), seq_len), generator=generator)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        item = self.items[index % len(self.items)]
        return {"input_ids": item, "labels": item.clone()}


def used_by_this_process():
    """Bytes of the GPU as the driver counts them."""
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid() and process.usedGpuMemory:
            return process.usedGpuMemory
    return 0


class Run:
    def __init__(self, row, out):
        import torch
        import torch._dynamo  # noqa: F401
        import transformers
        # Loaded by name, so when first asked for: before this process has the GPU.
        for name in ("Trainer", "TrainingArguments", "AutoModelForCausalLM"):
            getattr(transformers, name)
        kind = MODELS.get(row.model, (row.model,))[0].removesuffix("_text")
        importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        self.row, self.out, self.torch, self.transformers = row, out, torch, transformers
        if row.deepspeed:
            import deepspeed  # noqa: F401
        if row.liger:
            import liger_kernel.transformers  # noqa: F401
        if row.lora:
            import peft  # noqa: F401
        if row.nf4 or "bnb" in row.optim or "paged" in row.optim:
            import bitsandbytes  # noqa: F401
        print("READY", flush=True)
        sys.stdin.readline()
        self.peaks = Peaks(torch, bool(row.load or row.phases))
        self.figures = {}
        self.phase = "start"

    def arguments(self):
        row = self.row
        given = dict(
            output_dir=str(CHECKPOINTS / row.name), max_steps=WARM_UP + row.steps,
            per_device_train_batch_size=row.micro_batch, gradient_accumulation_steps=row.grad_accum,
            bf16=row.autocast, optim=row.optim, gradient_checkpointing=row.recompute,
            use_liger_kernel=row.liger, torch_compile=row.compile, report_to="none",
            save_strategy="no", disable_tqdm=True)
        if row.reentrant is not None:
            given["gradient_checkpointing_kwargs"] = {"use_reentrant": row.reentrant}
        if row.deepspeed:
            given["deepspeed"] = row.deepspeed
        if row.fsdp:
            given.update(fsdp=True, fsdp_config=dict(row.fsdp))
        if row.explain:
            given["max_steps"] += 2
        given.update(row.args)
        return self.transformers.TrainingArguments(**given)

    def config(self):
        kind, shape = MODELS.get(self.row.model, (self.row.model, {}))
        config = self.transformers.AutoConfig.for_model(kind, **{**shape, **self.row.model_config})
        config.use_cache = False
        return config

    def fresh_model(self, dtype):
        self.torch.manual_seed(0)
        with self.torch.device("cuda"):
            return self.transformers.AutoModelForCausalLM.from_config(
                self.config(), dtype=dtype, attn_implementation=self.row.attention)

    def folder(self):
        row = self.row
        return MODEL_FOLDER / f"{row.model}-{row.weights}-{len(row.model_config)}"

    def save_folder(self):
        """Before TrainingArguments are made: with DeepSpeed's stage 3 all models are sharded."""
        if self.folder().exists():
            return
        model = self.fresh_model(self.dtype())
        model.save_pretrained(self.folder())
        del model
        gc.collect()
        self.torch.cuda.empty_cache()

    def loaded_model(self, dtype):
        row, torch = self.row, self.torch
        more = {}
        if row.nf4:
            more["quantization_config"] = self.transformers.BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16)
        self.peaks.restart()
        model = self.transformers.AutoModelForCausalLM.from_pretrained(
            self.folder(), dtype=dtype, attn_implementation=row.attention, **more)
        model.config.use_cache = False
        self.figures["load"] = self.peaks.read()
        return model

    def dtype(self):
        return {"bf16": self.torch.bfloat16, "fp32": self.torch.float32}[self.row.weights]

    def loads(self):
        return self.row.load or self.row.nf4

    def model(self):
        row = self.row
        dtype = self.dtype()
        model = self.loaded_model(dtype) if self.loads() else self.fresh_model(dtype)
        self.figures["params"] = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
        if row.kbit:
            from peft import prepare_model_for_kbit_training
            model = prepare_model_for_kbit_training(
                model, use_gradient_checkpointing=row.recompute,
                gradient_checkpointing_kwargs={"use_reentrant": bool(row.reentrant)})
        if row.lora:
            from peft import LoraConfig, get_peft_model
            given = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear",
                     "task_type": "CAUSAL_LM", **row.lora}
            casts = given.pop("autocast_adapter_dtype", True)
            model = get_peft_model(model, LoraConfig(**given), autocast_adapter_dtype=casts)
            self.figures["trainable"] = sum(p.numel() for p in model.parameters()
                                            if p.requires_grad)
        return model

    def train(self):
        row, torch, run = self.row, self.torch, self
        if row.limit:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(row.limit * GIB / total)
        self.phase = "load"
        if self.loads():
            self.save_folder()
        arguments = self.arguments()
        model = self.model()
        explainer = None
        if row.explain:
            from trainer_explain import Explainer
            explainer = Explainer(torch, self.out / f"{row.name}.txt")
        stamps = []

        class Clock(self.transformers.TrainerCallback):
            def on_train_begin(self, *_, **__):
                run.figures["init"] = run.peaks.read()
                run.figures["after_init"] = round(torch.cuda.memory_allocated() / GIB, 4)
                run.phase = "step"
                run.peaks.restart()
                self.on_step_end()

            def on_step_end(self, args=None, state=None, *_, **__):
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                stamps.append((event, time.perf_counter()))
                last = args and (args.max_steps if row.figures else WARM_UP + row.steps)
                if state and state.global_step == last:
                    run.read_steps(stamps)
                if explainer and state:
                    explainer.step_ended(state.global_step - WARM_UP - row.steps, run)

            def on_pre_optimizer_step(self, *_, **__):
                if explainer:
                    explainer.mark("clip")

            def on_optimizer_step(self, *_, **__):
                if explainer:
                    explainer.mark("optimizer")

        torch.cuda.empty_cache()
        self.peaks.restart()
        self.phase = "init"
        vocab = self.config().vocab_size
        tokens = RandomTokens(torch, 10**5, row.seq_len, vocab)
        batches = 4 * arguments.per_device_eval_batch_size
        self.trainer = self.transformers.Trainer(
            model=model, args=arguments, train_dataset=tokens, callbacks=[Clock()],
            eval_dataset=RandomTokens(torch, batches, row.seq_len, vocab))
        out = self.trainer.train(resume_from_checkpoint=row.figures.get("resumes"))
        self.figures["loss"] = round(out.training_loss, 4)
        self.other_phases()
        return self.figures

    def read_steps(self, stamps):
        row, torch = self.row, self.torch
        figures = self.peaks.read()
        stats = torch.cuda.memory_stats()
        pairs = list(zip(stamps, stamps[1:]))[WARM_UP:]
        gpu = sorted(a[0].elapsed_time(b[0]) for a, b in pairs)
        host = sorted(1e3 * (b[1] - a[1]) for a, b in pairs)
        median = gpu[len(gpu) // 2]
        self.figures.update(
            {k: v for k, v in figures.items() if k != "seconds"},
            after=round(torch.cuda.memory_allocated() / GIB, 4),
            alloc_retries=stats.get("num_alloc_retries", 0), segments=stats["segment.all.peak"],
            step_ms=round(median, 2), step_ms_all=[round(x, 1) for x in gpu],
            host_step_ms=round(host[len(host) // 2], 2),
            tok_s=round(1e3 * row.micro_batch * row.grad_accum * row.seq_len / median))

    def other_phases(self):
        row, trainer = self.row, self.trainer
        if "evaluate" in row.phases:
            self.measure("evaluate", trainer.evaluate)
        if "save" in row.phases or "resume" in row.phases:
            folder = CHECKPOINTS / f"{row.name}-model"
            self.measure("save_model", lambda: trainer.save_model(folder))
            shutil.rmtree(folder, ignore_errors=True)
            self.measure("save_checkpoint",
                         lambda: trainer._save_checkpoint(trainer.model_wrapped, trial=None))

    def measure(self, phase, act):
        self.phase = phase
        self.torch.cuda.empty_cache()
        self.peaks.restart()
        act()
        self.figures[phase] = self.peaks.read()


def versions(torch, row):
    import importlib.metadata
    names = ["torch", "transformers", "accelerate"]
    names += ["deepspeed"] * bool(row.deepspeed) + ["liger_kernel"] * row.liger
    names += ["peft"] * bool(row.lora)
    names += ["bitsandbytes"] * (row.nf4 or "bnb" in row.optim or "paged" in row.optim)
    names += ["torchao"] * (row.optim == "adamw_torch_8bit")
    return {**{n: importlib.metadata.version(n) for n in names}, "cuda": torch.version.cuda}


def child(line, out):
    row = Row(**json.loads(line))
    run = Run(row, out)
    torch = run.torch
    said = {"name": row.name, "gpu": torch.cuda.get_device_name(0)}
    try:
        said.update(run.train())
        print(torch.cuda.memory_summary())
    except Exception as error:  # the row says what went wrong, the log the rest
        traceback.print_exc()
        kind = "oom" if "out of memory" in str(error) else "error"
        said.update(run.figures, **{kind: run.phase}, message=repr(error)[:300])
    said["versions"] = versions(torch, row)
    print("RESULT " + json.dumps(said), flush=True)
    os._exit(0)  # past what DeepSpeed and NCCL say at the end


def start(row, out):
    env = dict(os.environ, PYTHONUNBUFFERED="1", TOKENIZERS_PARALLELISM="false", **row.env)
    if row.deepspeed or row.fsdp:
        env.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(29500 + os.getpid() % 500 + start.count % 100))
        start.count += 1
    log = open(out / f"{row.name}.log", "w+")
    if row.explain:
        env.setdefault("TORCH_SYMBOLIZE_MODE", "dladdr")  # fast, and enough for autograd's nodes
    command = [sys.executable, __file__, "--row", json.dumps(dataclasses.asdict(row)), "--out",
               str(out)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log,
                               stderr=subprocess.STDOUT, env=env)
    return row, process, log


start.count = 0


def text_of(log):
    return pathlib.Path(log.name).read_text(errors="replace")


def finish(started, results, settings):
    row, process, log = started
    begin = time.perf_counter()
    if process.poll() is None:
        process.stdin.write(b"\n")
        process.stdin.flush()
    while process.poll() is None:
        time.sleep(0.1)
        if time.perf_counter() - begin > row.timeout:
            process.kill()
            process.wait()
    lines = [x for x in text_of(log).splitlines() if x.startswith("RESULT ")]
    said = json.loads(lines[-1][7:]) if lines else {"error": f"ended with {process.returncode}"}
    said = {**settings, **said, "wall_s": round(time.perf_counter() - begin, 1)}
    results.write(json.dumps(said) + "\n")
    results.flush()
    shown = ("name", "allocated", "reserved", "step_ms", "host_step_ms", "tok_s", "oom", "error",
             "message", "wall_s")
    print(json.dumps({k: said[k] for k in shown if k in said}), flush=True)


def settings_of(row):
    """What of a row is not at its default, and the figures that every row is told by."""
    told = ("weights", "optim", "seq_len", "micro_batch", "grad_accum")
    left_out = ("timeout", "figures", "explain", "steps")
    return {f.name: getattr(row, f.name) for f in dataclasses.fields(row)
            if f.name not in left_out and getattr(row, f.name) not in (None, {}, [])
            and (f.name in told or getattr(row, f.name) != f.default)}


def with_resumes(rows):
    for row in rows:
        yield row
        if "resume" in row.phases:
            folder = CHECKPOINTS / row.name / f"checkpoint-{WARM_UP + row.steps + 2 * row.explain}"
            more = {**row.args, "max_steps": WARM_UP + 2 * row.steps}
            yield dataclasses.replace(row, name=row.name + "-resumed", args=more, explain=False,
                                      phases=[], figures={"resumes": str(folder)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="?")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--row")
    options = parser.parse_args()
    if options.row:
        child(options.row, options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    given = [json.loads(x) for x in open(options.rows) if x.strip() and not x.startswith("#")]
    rows = [Row(**x) for x in given if not options.only or x["name"] in options.only]
    rows = list(with_resumes(rows))
    with open(options.out / "runs.jsonl", "a") as results:
        for first in range(0, len(rows), BATCH):
            batch = [start(row, options.out) for row in rows[first:first + BATCH]]
            while any(p.poll() is None and "READY" not in text_of(log) for _, p, log in batch):
                time.sleep(0.1)
            for started in batch:
                finish(started, results, settings_of(started[0]))


if __name__ == "__main__":
    main()
