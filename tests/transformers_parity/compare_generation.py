#!/usr/bin/env python3
"""The same greedy text from a fine-tuned folder, by transformers and by `zeroplan generate`.

    python3 tests/transformers_parity/compare_generation.py build/release/zeroplan-executor

Small random models (gpt2, llama with grouped heads, qwen2 with a tied head, mistral, qwen3) as
folders that transformers has written are fine-tuned by `zeroplan train --model DIR --data TEXT
--save OUT`.
transformers loads OUT with the tokenizer that lies there and generates 64 tokens greedily in fp32;
`zeroplan generate OUT --temperature 0` must print the same text, with its key-value cache and
without. The prompts are such that text ends within the context and behind its half.

Exit code 1 where a text differs; 77 where a package is missing.
"""
import pathlib
import sys
import tempfile

from models import corpus, families, load_tokenizer, make_model, run, torch, transformers

TOKENS = 64
PROMPTS = ["A checkpoint is", "The step program", "What a run starts from:\n\n", "| option | ",
           "Where a file cannot be read, the run ends with its name. " * 2]


def expected_texts(folder):
    tokenizer = load_tokenizer(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    model.eval()
    for prompt in PROMPTS:
        # Without token types: gpt2 would add the embedding of token 0 everywhere.
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        assert inputs["input_ids"].shape[1] + TOKENS <= model.config.max_position_embeddings
        with torch.no_grad():
            made = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS,
                                  pad_token_id=tokenizer.eos_token_id)
        yield prompt, tokenizer.decode(made[0], skip_special_tokens=True)


def main():
    program = sys.argv[1]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        (work / "text.txt").write_text("\n".join(corpus())[:60_000])
        for family, config in families().items():
            folder, out = work / family, work / f"{family}-out"
            make_model(config, folder)
            run(program, "train", "--model", folder, "--data", work / "text.txt", "--seq-len", 64,
                "--micro-batch", 4, "--steps", 300, "--lr", "5e-3", "--lr-schedule", "cosine",
                "--warmup-ratio", 0.1, "--weight-decay", 0.1, "--threads", 2, "--save", out,
                cache=work / "cache")
            different = 0
            for prompt, expected in expected_texts(out):
                for more in ([], ["--no-cache"]):
                    text = run(program, "generate", out, "--prompt", prompt, "--tokens", TOKENS,
                               "--temperature", 0, "--dtype", "fp32", *more, cache=work / "cache")
                    if text == expected + "\n":
                        continue
                    different += 1
                    print(f"{family} {more}:\n  transformers {expected!r}\n  zeroplan     {text!r}")
            print(f"{family}: {len(PROMPTS)} prompts, {TOKENS} tokens each, "
                  f"{'the same' if different == 0 else f'{different} texts differ'}")
            failed += different
    sys.exit(1 if failed else 0)


main()
