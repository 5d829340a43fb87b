#!/usr/bin/env python3
"""The same 50 steps by transformers' Trainer and by `zeroplan train`, in fp32.

    python3 tests/transformers_parity/compare_trainer.py build/release/zeroplan-executor

Both start from the folder that transformers wrote, and go over the same tokens in the same order
(--no-shuffle; a sequential sampler there), 2 sequences a micro-batch and 2 micro-batches a step,
with the same schedule, warm-up share, weight decay and clipping. Losses and learning rates of every
step are compared, and the loss on a validation file.

Then on conversations: a file of messages here, a line each, through the folder's chat template with
one conversation a sequence (--packing off), and the same ids and masks of the assistant's tokens,
made by apply_chat_template, there; the mean is over the tokens that count. There a step is one
micro-batch, as older Trainers take the mean over micro-batches first; here it is cut in two.

Losses are to agree within 1e-4 of themselves: both round to 24 bits, in other orders, gradients
differ by about 1e-6 of themselves, and Adam's first steps go by the sign even of a gradient near
zero. Rates: 1e-6 (they are printed in fp32). Exit code 1 beyond that; 77 where a package is
missing.
"""
import json
import pathlib
import sys
import tempfile

from models import (POSITIONS, SKIP, corpus, families, leave_norms_out_of_decay, load_tokenizer,
                    make_model, relative, run, torch, transformers)

try:
    import accelerate  # noqa: F401  (the Trainer asks for it)
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(SKIP)

STEPS, LENGTH, ROWS, MICRO_STEPS = 50, 32, 2, 2
CHAT_LENGTH = POSITIONS - 1  # and a last target
RATE, WARMUP, DECAY, NORM, BETA2 = 1e-3, 0.1, 0.1, 1.0, 0.999
BOUND = 1e-4
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}\
{% else %}{{ m['content'] }}<|im_end|>{% endif %}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Samples(torch.utils.data.Dataset):
    """Sample k is tokens [k*LENGTH, k*LENGTH + LENGTH], as zeroplan cuts the stream; the Trainer's
    model shifts the labels itself, so a sample has its last target as its last token. Its first
    token is nobody's target; the Trainer of 5.24 would count it as one of gpt2's."""

    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return (len(self.ids) - 1) // LENGTH

    def __getitem__(self, k):
        row = torch.tensor(self.ids[k * LENGTH:k * LENGTH + LENGTH + 1])
        labels = row.clone()
        labels[0] = -100
        return {"input_ids": row, "labels": labels}


class Conversations(torch.utils.data.Dataset):
    """A conversation a sample, padded; what the assistant says is what counts."""

    def __init__(self, tokenizer, conversations):
        self.rows = [tokenizer.apply_chat_template(messages, return_dict=True,
                                                   return_assistant_tokens_mask=True)
                     for messages in conversations]
        self.pad = tokenizer.eos_token_id

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        ids = self.rows[k]["input_ids"][:CHAT_LENGTH + 1]
        counts = self.rows[k]["assistant_masks"][:CHAT_LENGTH + 1]
        rest = CHAT_LENGTH + 1 - len(ids)
        return {"input_ids": torch.tensor(ids + [self.pad] * rest),
                "attention_mask": torch.tensor([1] * len(ids) + [0] * rest),
                "labels": torch.tensor([i if c else -100 for i, c in zip(ids, counts)]
                                       + [-100] * rest)}


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Record(transformers.TrainerCallback):
    def __init__(self):
        self.rates, self.validation = [], None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "eval_loss" in logs:
            self.validation = logs["eval_loss"]


def by_trainer(folder, shape, work, train, validation, rows=ROWS, micro_steps=MICRO_STEPS):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    leave_norms_out_of_decay(model)
    record = Record()
    arguments = transformers.TrainingArguments(
        output_dir=str(work / "trainer"), per_device_train_batch_size=rows,
        # One batch: the Trainer takes the mean of batches' means.
        per_device_eval_batch_size=len(validation), gradient_accumulation_steps=micro_steps,
        max_steps=STEPS, learning_rate=RATE, warmup_steps=round(WARMUP * STEPS), weight_decay=DECAY,
        max_grad_norm=NORM, adam_beta2=BETA2, adam_epsilon=1e-8, save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True, dataloader_drop_last=True, **shape)
    trainer = InOrder(model=model, args=arguments, train_dataset=train,
                      eval_dataset=validation, callbacks=[record])
    # As given: rounded to four digits it is of no use here.
    trainer.log = lambda logs, *_: record.on_log(None, None, None, logs=logs)
    losses = []
    step = trainer.training_step

    def keep(*parts):
        loss = step(*parts)
        losses.append(loss.item())
        record.rates.append(trainer.optimizer.param_groups[0]["lr"])
        return loss

    trainer.training_step = keep
    trainer.train()
    trainer.evaluate()
    # A training_step returns its micro-batch's share of the step's mean loss.
    whole = [sum(losses[i:i + micro_steps]) for i in range(0, len(losses), micro_steps)]
    return whole, record


def by_zeroplan(program, folder, options, work, name, train, validation):
    metrics = work / f"{name}.jsonl"
    run(program, "train", "--model", folder, "--data", train, "--validation-data", validation,
        "--no-shuffle", "--micro-batch", ROWS, "--grad-accum", MICRO_STEPS, "--steps", STEPS,
        "--lr", RATE, "--warmup-ratio", WARMUP, "--weight-decay", DECAY, "--max-grad-norm", NORM,
        "--metrics", metrics, "--threads", 2, *options, cache=work / "cache")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    return steps, [line for line in lines if line["event"] == "validation"][-1]


def compare(name, losses, record, steps, validation):
    assert len(losses) == len(steps) == STEPS
    loss = max(relative(a, step["loss"]) for a, step in zip(losses, steps))
    rates = record.rates[::len(record.rates) // STEPS]
    rate = max(abs(a - step["lr"]) / RATE for a, step in zip(rates, steps))
    held = relative(record.validation, validation["loss"])
    good = loss < BOUND and rate < 1e-6 and held < BOUND
    print(f"{name}: {losses[0]:.4f} -> {losses[-1]:.4f}; largest relative difference of losses "
          f"{loss:.1e}, of the validation loss {held:.1e}; of rates {rate:.1e} of the largest: "
          f"{'agree' if good else 'DIFFER'}")
    return good


def on_text(program, work):
    text = "\n".join(corpus())
    (work / "train.txt").write_text(text[:40_000])
    (work / "validation.txt").write_text(text[50_000:54_000])
    shapes = {
        "gpt2": (dict(lr_scheduler_type="linear"), ["--lr-schedule", "linear"]),
        "llama": (dict(lr_scheduler_type="cosine_with_min_lr",
                       lr_scheduler_kwargs=dict(min_lr=RATE / 10)),
                  ["--lr-schedule", "cosine", "--min-lr", RATE / 10]),
        "qwen2": (dict(lr_scheduler_type="constant_with_warmup"), []),
    }
    for family, (shape, options) in shapes.items():
        folder = work / family
        make_model(families()[family], folder)
        tokenizer = load_tokenizer(folder)
        ids = [tokenizer((work / f"{part}.txt").read_text())["input_ids"]
               + [tokenizer.eos_token_id] for part in ("train", "validation")]
        rows = (len(ids[1]) - 1) // LENGTH // ROWS * ROWS  # zeroplan's are whole batches
        losses, record = by_trainer(folder, shape, work, Samples(ids[0]),
                                    Samples(ids[1][:rows * LENGTH + 1]))
        yield compare(family, losses, record, *by_zeroplan(
            program, folder, ["--seq-len", LENGTH, *options], work, family, work / "train.txt",
            work / "validation.txt"))


def on_conversations(program, work):
    lines = [line for text in corpus() for line in text.splitlines() if 20 < len(line) < 120]
    talks = [[{"role": "user", "content": lines[3 * k]},
              {"role": "assistant", "content": lines[3 * k + 1]},
              {"role": "user", "content": lines[3 * k + 2][:40]},
              {"role": "assistant", "content": lines[3 * k][:60]}]
             for k in range(STEPS * ROWS * MICRO_STEPS + 16)]
    parts = {"train": talks[16:], "validation": talks[:16]}
    for name, part in parts.items():
        (work / f"{name}.jsonl").write_text(
            "".join(json.dumps({"messages": messages}) + "\n" for messages in part))
    for family in ("llama", "gpt2"):
        folder = work / f"{family}-chat"
        make_model(families()[family], folder, template=TEMPLATE)
        tokenizer = load_tokenizer(folder)
        losses, record = by_trainer(
            folder, dict(lr_scheduler_type="linear"), work,
            Conversations(tokenizer, parts["train"]), Conversations(tokenizer, parts["validation"]),
            rows=ROWS * MICRO_STEPS, micro_steps=1)
        yield compare(f"{family}, conversations", losses, record, *by_zeroplan(
            program, folder, ["--seq-len", CHAT_LENGTH, "--packing", "off", "--lr-schedule",
                              "linear"], work, f"{family}-chat", work / "train.jsonl",
            work / "validation.jsonl"))


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        good = [*on_text(program, work), *on_conversations(program, work)]
    sys.exit(0 if all(good) else 1)


main()
