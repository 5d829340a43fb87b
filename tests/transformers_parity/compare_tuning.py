#!/usr/bin/env python3
"""Fine-tuning by TRL's SFTTrainer, by transformers' Trainer and by `zeroplan train`, in fp32.

    python3 -m pip install torch transformers trl
    python3 tests/transformers_parity/compare_tuning.py build/release/zeroplan-executor

All three get the same small random model and the same records. What a record becomes is each one's
own work: TRL reads the records, renders and tokenizes them, masks, cuts and packs. Then the loss of
each of 20 steps is compared, and every weight at the end. The cases: texts and text files with the
token that the tokenizer puts before a text, prompts with completions, conversations of which the
assistant's words count (thoughts, calls of tools, what tools answer), a sequence for each document,
and several documents a sequence.

How both come to the same samples in the same order:
- The records are trained on from first to last: --no-shuffle here, a list of batches there. A step
  is two micro-batches of two sequences.
- The chat template of the model's folder has no generation marks, so zeroplan finds by itself what
  the assistant says. TRL needs the marks: it gets the same template with them. Both are made of one
  text below. One case has marks in the folder: there it is TRL's template for training Qwen3.
- Packed, TRL lays documents end to end and starts positions anew at each (`padding_free`). Without
  flash attention transformers then masks by positions. That this keeps documents apart is checked
  first: the packed loss must be that of documents one by one. TRL packs other documents together,
  as it counts n tokens of a document where zeroplan counts n - 1 pairs. So one case gives TRL the
  documents of zeroplan's sequences (packing documents), and another has TRL pack and takes all
  documents each step (packing bfd).
- A stream of tokens has no counterpart in TRL, whose chunks do not overlap by the one token that is
  a target first and an input then. There it is the Trainer that gets the same windows.

Adam's epsilon is about as large as the gradients are. So a step shows the size of a gradient, which
1e-8 hides, and rounding of a gradient near zero (that of the bias of gpt2's keys is nothing else)
does not become a whole step. Norms of gradients lie on both sides of the norm that they are clipped
to.

Losses are to agree within 1e-6 of themselves, and weights within 1e-6 of the largest weight: both
round to 24 bits, in other orders. Printed beside it is the difference of the weights as a share of
their largest change. Exit code 1 beyond that; 77 where a package is missing.
"""
import json
import pathlib
import sys
import tempfile

from models import (SKIP, corpus, families, leave_norms_out_of_decay, load_tokenizer, make_model,
                    relative, run, torch, transformers)

try:
    import datasets
    import trl
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(SKIP)

STEPS, ROWS, MICRO_STEPS = 20, 2, 2
RECORDS, WHOLE = STEPS * ROWS * MICRO_STEPS, 12
RATE, WARMUP, DECAY, NORM, BETA2, EPSILON = 1e-3, 2, 0.1, 2.0, 0.999, 1e-3
BOUND = 1e-6
BEGIN = "<s>"

# As Qwen3's: thoughts are printed behind the last question only, and tools answer as the user. No
# line begins behind a tag, so that the text is the same without the marks.
MARKED = (
    "{% set at = namespace(asked=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set at.asked = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}<|im_start|>system{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}"
    "{% endfor %}<|im_end|>{{ '\n' }}{% endif %}"
    "{% for m in messages %}{% set said = m.content or '' %}{% if m.role == 'assistant' %}"
    "{% set thought = m.reasoning_content or '' %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% set said = said.split('</think>')[-1].lstrip() %}{% endif %}"
    "<|im_start|>assistant{{ '\n' }}{% generation %}"
    "{% if thought and loop.index0 > at.asked %}{{ '<think>\n' + thought + '\n</think>\n\n' }}"
    "{% endif %}{{ said }}{% for call in m.tool_calls or [] %}{{ '\n<tool_call>\n' }}"
    "{\"name\": \"{{ call.function.name }}\", "
    "\"arguments\": {{ call.function.arguments | tojson }}}{{ '\n</tool_call>' }}{% endfor %}"
    "<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + said }}"
    "{{ '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + said + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
PLAIN = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
TOOLS = json.dumps([{"type": "function", "function": {
    "name": "weather", "description": "Of a town.", "parameters": {"type": "object", "properties": {
        "town": {"type": "string"}, "days": {"type": "integer"}}}}}])

LINES = [line for text in corpus() for line in text.splitlines() if 20 < len(line) < 120]


def line(k):
    return LINES[k * 7 % len(LINES)]


def texts(k):
    """One in ten is longer than a padded sequence."""
    lines = [line(9 * k + i) for i in range(9 if k % 10 == 3 else 1 + k % 3)]
    return {"text": "\n".join(lines)[:400]}


def completions(k):
    return {"prompt": line(2 * k), "completion": " " + line(2 * k + 1)[:20 + 13 * k % 90]}


def turns(k):
    says = [("user", line(3 * k)[:60]), ("assistant", line(3 * k + 1)[:80]),
            ("user", line(3 * k + 2)[:40]), ("assistant", line(3 * k)[:10 + 7 * k % 60])]
    return {"messages": [{"role": role, "content": text} for role, text in says[:2 + 2 * (k % 2)]]}


def thoughts(k):
    """Beside the content or in it, and in turns whose thoughts the template leaves out."""
    messages = turns(k)["messages"]
    for i, message in enumerate(messages[1::2]):
        thought = line(5 * k + i)[:40]
        if (k + i) % 3 == 0:
            message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"
        elif (k + i) % 3 == 1:
            message["reasoning_content"] = thought
    return {"messages": messages}


def tools(k):
    """Calls with and without words before them, one or two, thoughts before and behind."""
    messages = thoughts(k)["messages"]
    call = {"type": "function", "function": {
        "name": "weather", "arguments": {"town": line(k).split()[-1], "days": k % 9}}}
    says = {"role": "assistant", "content": "" if k % 3 else line(k + 1)[:30],
            "tool_calls": [call] * (1 + k % 2)}
    if k % 2:
        says["reasoning_content"] = line(k + 2)[:50]
    answers = [{"role": "tool", "name": "weather", "content": f"{k % 30} degrees"}] * (1 + k % 2)
    return {"messages": [*messages[:-1], says, *answers, messages[-1]], "tools": TOOLS}


def sequences(lengths, room):
    """The documents of each of --packing documents' sequences (docs/data.md): the longest first,
    each into the fullest sequence that has room, of several the one that was added to last."""
    rows = []
    for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
        fits = [row for row in reversed(rows) if row[0] >= lengths[k]]
        row = min(fits, key=lambda row: row[0], default=[room, []])
        rows = [other for other in rows if other is not row] + [row]
        row[0] -= lengths[k]
        row[1].append(k)
    return sorted(sorted(documents) for _, documents in rows)


class InOrder:
    """A Trainer that goes over `batches`, lists of samples, and keeps its losses."""

    def get_train_dataloader(self):
        self.losses = []
        return torch.utils.data.DataLoader(self.train_dataset, batch_sampler=self.batches,
                                           collate_fn=self.collated)

    def collated(self, samples):
        """No position has a row's first token as its target. Trainers of some versions, and for
        gpt2 that of 5.24, count it among the targets that the step's mean is over."""
        batch = self.data_collator(samples)
        batch["labels"][:, 0] = -100
        return batch

    def training_step(self, *arguments, **more):
        loss = super().training_step(*arguments, **more)
        self.losses.append(loss.item())
        return loss

    def run(self, micro_steps):
        """Losses of the steps, and the weights behind them. A training_step returns its
        micro-batch's share of the step's mean loss."""
        assert len(self.batches) == STEPS * micro_steps
        self.train()
        assert len(self.losses) == len(self.batches)
        steps = range(0, len(self.losses), micro_steps)
        return [sum(self.losses[i:i + micro_steps]) for i in steps], self.model.state_dict()


class Trainer(InOrder, transformers.Trainer):
    pass


class Tuner(InOrder, trl.SFTTrainer):
    pass


def settings(work, micro_steps):
    return dict(
        output_dir=str(work / "trainer"), per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=micro_steps, max_steps=STEPS, learning_rate=RATE,
        warmup_steps=WARMUP, lr_scheduler_type="linear", weight_decay=DECAY, max_grad_norm=NORM,
        adam_beta2=BETA2, adam_epsilon=EPSILON, logging_strategy="no", save_strategy="no",
        report_to=[], use_cpu=True, bf16=False, disable_tqdm=True)


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).float()
    leave_norms_out_of_decay(model)
    return model


def in_turn(rows):
    return [list(range(i, i + rows)) for i in range(0, RECORDS, rows)]


def by_trainer(folder, paths, length, work):
    """Over windows of the stream that the texts make."""
    tokenizer = load_tokenizer(folder)
    ids = [i for path in paths
           for i in [*tokenizer(path.read_text())["input_ids"], tokenizer.eos_token_id]]
    rows = [torch.tensor(ids[k * length:k * length + length + 1]) for k in range(RECORDS)]
    assert len(rows[-1]) == length + 1
    trainer = Trainer(model=load(folder),
                      args=transformers.TrainingArguments(**settings(work, MICRO_STEPS)),
                      train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.batches = in_turn(ROWS)
    return trainer.run(MICRO_STEPS)


def check_apart(tuner):
    """Documents laid end to end are trained on as if each stood alone."""
    batch = [tuner.train_dataset[k] for k in tuner.batches[0]]
    with torch.no_grad():
        inputs = tuner.data_collator(batch)
        inputs = {key: inputs[key] for key in ("input_ids", "position_ids", "labels")}
        packed = tuner.model(**inputs, use_cache=False).loss.item()
        total = count = 0
        for sample in batch:
            labels = torch.tensor([sample["labels"]])
            targets = (labels[:, 1:] != -100).sum().item()
            loss = tuner.model(input_ids=torch.tensor([sample["input_ids"]]), labels=labels).loss
            total, count = total + loss.item() * targets, count + targets
    assert relative(packed, total / count) < BOUND, (packed, total / count)


def by_tuner(folder, records, length, template, packing, work):
    """`packing`: off, documents (those of zeroplan's sequences) or bfd (TRL's own)."""
    tokenizer = load_tokenizer(folder)
    tokenizer.pad_token = tokenizer.eos_token
    if template:
        tokenizer.chat_template = template
    whole = packing == "bfd"
    micro_steps = 1 if whole else MICRO_STEPS
    tuner = Tuner(
        model=load(folder), processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(records),
        args=trl.SFTConfig(
            **settings(work, micro_steps), gradient_checkpointing=False,
            max_length=None if packing == "documents" else length + 1, packing=whole,
            padding_free=packing != "off", assistant_only_loss="messages" in records[0]))
    if packing == "off":
        tuner.batches = in_turn(ROWS)
    elif whole:
        tuner.batches = [list(range(len(tuner.train_dataset)))] * STEPS
    else:
        rows = sequences([len(row["input_ids"]) - 1 for row in tuner.train_dataset], length)
        taken = (rows * STEPS)[:STEPS * MICRO_STEPS * ROWS]  # from the start again at the end
        tuner.batches = [sum(taken[i:i + ROWS], []) for i in range(0, len(taken), ROWS)]
        assert max(map(len, tuner.train_dataset["input_ids"])) <= length + 1
        check_apart(tuner)
    if whole:
        lengths = [n - 1 for row in tuner.train_dataset for n in row["seq_lengths"]]
        return len(sequences(lengths, length)), *tuner.run(micro_steps)
    return ROWS, *tuner.run(micro_steps)


def by_zeroplan(program, folder, paths, length, rows, micro_steps, options, work):
    metrics, out = work / f"{folder.name}.jsonl", work / f"{folder.name}-out"
    config = work / "config.json"
    config.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": rows, "gradient_accumulation_steps": micro_steps,
        "gradient_clipping": NORM,
        "optimizer": {"type": "AdamW", "params": {
            "lr": RATE, "betas": [0.9, BETA2], "eps": EPSILON, "weight_decay": DECAY}},
        "_zeroplan": {"lr_schedule": "linear", "warmup_num_steps": WARMUP}}))
    run(program, "train", "--model", folder, "--data", *paths, "--config", config, "--no-shuffle",
        "--seq-len", length, "--steps", STEPS, "--backend", "cpu", "--dtype", "fp32", "--threads",
        2, "--metrics", metrics, "--save", out, *options, cache=work / "cache")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    return losses, load(out).state_dict()


def compare(name, folder, theirs, ours):
    (losses, weights), (our_losses, our_weights) = theirs, ours
    before = load(folder).state_dict()
    assert len(losses) == len(our_losses) == STEPS and weights.keys() == our_weights.keys()

    def furthest(a, b):
        return max((a[key] - b[key]).abs().max().item() for key in weights)

    loss = max(relative(a, b) for a, b in zip(losses, our_losses))
    weight = furthest(weights, our_weights)
    of_weights = weight / max(value.abs().max().item() for value in weights.values())
    good = loss < BOUND and of_weights < BOUND
    print(f"{name}: {losses[0]:.4f} -> {losses[-1]:.4f}; largest relative difference of losses "
          f"{loss:.1e}; of weights {of_weights:.1e} of the largest, "
          f"{weight / furthest(weights, before):.1e} of the largest change: "
          f"{'agree' if good else 'DIFFER'}", flush=True)
    return good


def trl_template(name):
    """A template of TRL's for training; it has generation marks."""
    file = pathlib.Path(trl.__file__).parent / "chat_templates" / name
    return file.read_text() if file.exists() else None


def cases():
    """Name, family, records, sequence length, packing, token before texts; then the template of
    the folder, and TRL's where it is another."""
    yield "texts", "llama", texts, 127, "off", BEGIN, None, None
    yield "texts", "gpt2", texts, 127, "off", None, None, None
    yield "texts", "llama", texts, 511, "documents", BEGIN, None, None
    yield "completions", "llama", completions, 127, "off", BEGIN, None, None
    yield "completions", "llama", completions, 383, "documents", BEGIN, None, None
    yield "completions", "mistral", completions, 127, "off", None, None, None
    yield "conversations", "qwen2", turns, 199, "off", None, PLAIN, MARKED
    yield "conversations, cut", "llama", turns, 127, "off", None, PLAIN, MARKED
    yield "conversations", "llama", turns, 511, "documents", None, PLAIN, MARKED
    for packing, length in (("off", 255), ("documents", 511), ("bfd", 511)):
        yield "thoughts", "qwen3", thoughts, length, packing, None, PLAIN, MARKED
    for packing, length in (("off", 703), ("documents", 1407), ("bfd", 1407)):
        yield "tools", "qwen3", tools, length, packing, None, PLAIN, MARKED
    yield "tools", "gpt2", tools, 1407, "documents", None, PLAIN, MARKED
    marked = trl_template("qwen3_training.jinja")
    if marked:
        yield "tools, TRL's template of Qwen3", "qwen3", tools, 1023, "off", None, marked, marked


def main():
    program = sys.argv[1]
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    torch.set_num_threads(1)  # enough for these models, and not in the way of others
    good = []
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)

        def folder_of(family, length, begin, template):
            folder = work / f"model{len(good)}"
            make_model(families(length + 1)[family], folder, template=template, begin=begin)
            return folder

        for family, begin in (("llama", BEGIN), ("gpt2", None)):
            folder = folder_of(family, 64, begin, None)
            paths = [work / "one.txt", work / "two.txt"]
            for path, text in zip(paths, corpus()):
                path.write_text(text[:20_000])
            good.append(compare(f"text files, {family}", folder,
                                by_trainer(folder, paths, 64, work),
                                by_zeroplan(program, folder, paths, 64, ROWS, MICRO_STEPS, [],
                                            work)))
        for name, family, record, length, packing, begin, template, theirs in cases():
            folder = folder_of(family, length, begin, template)
            # TRL lays all packed rows of a batch end to end, which few are enough for.
            records = [record(k) for k in range(WHOLE if packing == "bfd" else RECORDS)]
            path = work / "records.jsonl"
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
            rows, *tuned = by_tuner(folder, records, length, theirs, packing, work)
            ours = by_zeroplan(
                program, folder, [path], length, rows, 1 if packing == "bfd" else MICRO_STEPS,
                ["--packing", "off" if packing == "off" else "documents", "--truncate"], work)
            good.append(compare(f"{name}, {family}, packing {packing}", folder, tuned, ours))
    print(f"{len(good)} cases: {len(good) - sum(good)} differ")
    sys.exit(0 if all(good) else 1)


main()
