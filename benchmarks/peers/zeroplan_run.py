"""Runs `zeroplan train` and reads its metrics; writes its token files and configs. Standard library
and numpy only."""
import json
import os
import pathlib
import signal
import subprocess

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "build/release/zeroplan"


def token_file_name(vocab):
    """Of a file that has room for such tokens."""
    return "tokens.bin" if vocab <= 1 << 16 else "tokens.u32"


SECTIONS_MARK = 0x4345535A  # docs/data.md


def write_tokens(path, tokens, begins=None):
    """As text/files/token_file.h describes: .bin with a header, 16 bits a token, or a bare .u32. A .bin may say
    where documents begin, the first of them at token 0."""
    if pathlib.Path(path).suffix == ".u32":
        np.asarray(tokens).astype("<u4").tofile(path)
        return
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, len(tokens)
    if begins is not None:
        header[13] = SECTIONS_MARK
        header[14:18] = np.array([len(tokens), len(begins)], dtype="<i8").view("<i4")
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(np.asarray(tokens).astype("<u2").tobytes())
        if begins is not None:
            file.write(b"\0" * (-2 * len(tokens) % 8))
            file.write(np.asarray(begins).astype("<i8").tobytes())


def learnable_tokens(count, vocab, seed):
    """After token t comes next[t] three times of four, else any: a loss that training lowers."""
    rng = np.random.default_rng(seed)
    follows = rng.permutation(vocab)
    tokens = rng.integers(vocab, size=count)
    keep = rng.random(count) < 0.75
    for i in range(1, count):
        if keep[i]:
            tokens[i] = follows[tokens[i - 1]]
    return tokens


def offload_section(device, ratio=None, nvme_path=None):
    section = {"device": device}
    if ratio is not None and device == "cpu":
        section["ratio"] = ratio
    if device == "nvme":
        section["nvme_path"] = str(nvme_path)
    return section


def make_config(*, dtype, micro_batch, grad_accum, stage, adamw, offload_optimizer="none",
                offload_ratio=None, offload_param="none", recompute=False, nvme_path=None,
                small=False):
    """A DeepSpeed config. `adamw`: lr, betas, eps, weight_decay. Gradients are clipped at 1.
    `small`: for models whose tensors would all fit one bucket, or stay persistent, by the defaults.
    """
    zero = {"stage": stage}
    if small:
        zero["reduce_bucket_size"] = 20_000
    if small and stage == 3:  # biases and norms stay
        zero["stage3_param_persistence_threshold"] = 1_000
        zero["stage3_prefetch_bucket_size"] = 20_000
    if offload_optimizer != "none":
        zero["offload_optimizer"] = offload_section(offload_optimizer, offload_ratio, nvme_path)
    if offload_param != "none":
        zero["offload_param"] = offload_section(offload_param, None, nvme_path)
    config = {"train_micro_batch_size_per_gpu": micro_batch,
              "gradient_accumulation_steps": grad_accum, "zero_optimization": zero,
              "bf16": {"enabled": dtype == "bf16"}, "gradient_clipping": 1.0,
              "optimizer": {"type": "AdamW", "params": adamw}}
    if recompute:
        config["activation_checkpointing"] = {}
    return config


class Failed(Exception):
    """A run ended with an error; the text holds its last lines."""


def quiet_nccl(env):
    """NVLink multicast needs rights on the host that shared machines do not give."""
    env.setdefault("NCCL_NVLS_ENABLE", "0")
    return env


def last_lines(text, count=15):
    """Under torchrun those of the worker that failed: torchrun's own report, after them, names no cause."""
    lines = text.strip().splitlines()
    reports = [line.startswith("E") and "torch/distributed/elastic/" in line for line in lines]
    end = reports.index(True) if any(reports) else len(lines)
    return "\n".join(lines[:end or None][-count:])


def torchrun(python, gpus):
    """What a script is given to that runs as a process a GPU."""
    # --standalone: at a port that it finds free itself.
    return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", gpus]


def run_command(command, timeout, env=None):
    """Returns stdout; raises Failed with the last lines of both outputs."""
    command = [str(part) for part in command]
    env = quiet_nccl(dict(os.environ if env is None else env))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=env, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its workers, which have sessions of their own
            try:
                out, err = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
            raise Failed(f"no end after {timeout} s\n{last_lines(out + err)}") from None
    if process.returncode != 0:
        raise Failed(f"exit code {process.returncode}\n{last_lines(out + err)}")
    return out


def read_metrics(path):
    """{"start": {...}, "steps": [...], "end": {...}} of a metrics file."""
    lines = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    result = {"start": None, "steps": [], "end": None}
    for line in lines:
        if line["event"] == "step":
            result["steps"].append(line)
        elif line["event"] in ("start", "end"):
            result[line["event"]] = line
    return result


def train(options, metrics, binary=BINARY, timeout=3600):
    """`zeroplan train` with `options`; returns what read_metrics does. An earlier run's `metrics` go."""
    pathlib.Path(metrics).unlink(missing_ok=True)
    run_command([binary, "train", *options, "--metrics", metrics], timeout)
    return read_metrics(metrics)


def losses_of(result):
    """Losses by step; one that is not finite is NaN."""
    return [float("nan") if s["loss"] is None else s["loss"] for s in result["steps"]]


def version(binary=BINARY):
    return subprocess.run([str(binary), "--version"], capture_output=True, text=True,
                          check=False).stdout.strip()
