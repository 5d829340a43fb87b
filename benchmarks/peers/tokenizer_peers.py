"""Speed of zeroplan's tokenizers beside the PyPI packages `tokenizers` and `tiktoken`: the same texts, the same
tokenizers, in turn, the median of several rounds. tiktoken only where it can hold the tokenizer: bytes, one
regular expression, merges in the order of the vocabulary.

usage: tokenizer_peers.py TOKENIZER_BENCHMARK [--mb MB] [--rounds COUNT] [--threads COUNT...] [--cache FOLDER]
       [--only NAME...]
"""
import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "tokenizer_parity"))
import structures  # noqa: E402
import texts as texts_module  # noqa: E402


def as_tiktoken(name, document):
    """tiktoken's Encoding of a byte-level tokenizer, None if it cannot hold it."""
    import tiktoken
    pattern = {"gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
               "llama3": structures.LLAMA3, "qwen2": structures.QWEN}.get(name)
    if pattern is None:
        return None
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    spelling = {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(rest)}}
    special = {token["content"]: token["id"] for token in document["added_tokens"]}
    ranks = {bytes(spelling[c] for c in token): index for token, index in document["model"]["vocab"].items()
             if token not in special}
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


def ours(program, path, texts_path, threads):
    out = subprocess.run([program, path, texts_path, str(threads)], capture_output=True, text=True, check=True).stdout
    line = re.search(r"threads \d+: ([\d.]+) MB/s, ([\d.]+) MB/CPU s, \d+ bytes, (\d+) tokens", out)
    return float(line[1]), float(line[2]), int(line[3])


def timed(function, megabytes):
    begin, ticks = time.perf_counter(), time.process_time()
    result = function()
    seconds, processor = time.perf_counter() - begin, time.process_time() - ticks
    return megabytes / seconds, megabytes / processor, sum(len(ids) for ids in result)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--mb", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, os.cpu_count()])
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--only", nargs="*", default=["gpt2", "llama3", "qwen2", "llama2", "mistral_v03", "deepseek_llm"])
    parser.add_argument("--cache")
    options = parser.parse_args()
    import random
    rng = random.Random(5)
    unit = options.mb * 1e6
    # Half prose and code in English, a quarter other languages, a quarter Chinese.
    texts = list(texts_module.from_files(os.path.dirname(os.__file__), ".py", unit * 0.25, rng))
    texts += texts_module.from_files("/usr/share/doc", (".txt", "copyright", ".md"), unit * 0.25, rng)
    texts += texts_module.translations(unit * 0.25, rng)
    texts += texts_module.script(0x4E00, 0x9FA5, rng, unit * 0.25, 1.5)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        texts_path = os.path.join(folder, "texts")
        with open(texts_path, "wb") as file:
            for text in texts:
                file.write(struct.pack("<Q", len(text.encode())) + text.encode())
        print(f"{len(texts)} texts, {megabytes:.1f} MB; MB/s, medians of {options.rounds} rounds")
        for name in options.only:
            path = os.path.join(options.cache or folder, f"{name}.json")
            if not os.path.exists(path):
                document = structures.build(name, texts, options.vocab)
                json.dump(document, open(path, "w", encoding="utf-8"), ensure_ascii=False)
            for threads in dict.fromkeys(options.threads):
                measure(options, name, path, texts, texts_path, megabytes, threads)


def measure(options, name, path, texts, texts_path, megabytes, threads):
    # How many threads `tokenizers` uses is fixed when it first encodes: a process of its own for each.
    code = ("import json,sys,time,tokenizers,pickle\n"
            "texts=pickle.load(open(sys.argv[2],'rb')); t=tokenizers.Tokenizer.from_file(sys.argv[1])\n"
            "t.encode_batch_fast(texts[:4],add_special_tokens=False)\n"
            "b=time.perf_counter(); c=time.process_time(); r=t.encode_batch_fast(texts,add_special_tokens=False)\n"
            "print(time.perf_counter()-b, time.process_time()-c, sum(len(x.ids) for x in r))\n")
    import pickle
    pickled = texts_path + ".pickle"
    if not os.path.exists(pickled):
        pickle.dump(texts, open(pickled, "wb"))
    document = json.load(open(path, encoding="utf-8"))
    tik = as_tiktoken(name, document)
    rates = {"zeroplan": [], "tokenizers": [], "tiktoken": []}
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"}
    for _ in range(options.rounds):
        rates["zeroplan"].append(ours(options.program, path, texts_path, threads))
        out = subprocess.run([sys.executable, "-c", code, path, pickled], capture_output=True, text=True, check=True,
                             env=environment).stdout.split()
        rates["tokenizers"].append((megabytes / float(out[0]), megabytes / float(out[1]), int(out[2])))
        if tik is not None:
            rates["tiktoken"].append(timed(lambda: tik.encode_ordinary_batch(texts, num_threads=threads), megabytes))
    shown = []
    for peer, measured in rates.items():
        if measured:
            wall, processor, tokens = (statistics.median(column) for column in zip(*measured))
            shown.append(f"{peer} {wall:.1f} ({processor:.1f} a CPU second, {tokens} tokens)")
    print(f"{name}, {threads} threads: {'; '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
