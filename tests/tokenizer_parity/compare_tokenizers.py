"""Compares zeroplan's tokenizers with the PyPI package `tokenizers`: ids and decoded text of many texts, for
tokenizers with the structures of published ones (structures.py).

usage: compare_tokenizers.py ENCODE_TEXTS [--mb MB] [--random COUNT] [--only NAME...] [--cache FOLDER]

Prints a line for each structure and ends with 1 if anything differs.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

try:
    import tokenizers
except ImportError:
    print("the package `tokenizers` is not installed")
    sys.exit(77)

import structures
import texts as texts_module


def as_text(text):
    return text if isinstance(text, str) else text.decode("utf-8", errors="replace")


def write(path, texts):
    with open(path, "wb") as file:
        for text in texts:
            data = text.encode() if isinstance(text, str) else text
            file.write(struct.pack("<Q", len(data)) + data)


def read_ids(path):
    data = memoryview(open(path, "rb").read())
    at = 0
    while at < len(data):
        (count,) = struct.unpack_from("<Q", data, at)
        yield list(data[at + 8:at + 8 + 4 * count].cast("i"))
        at += 8 + 4 * count


def read_texts(path):
    data = open(path, "rb").read()
    at = 0
    while at < len(data):
        (count,) = struct.unpack_from("<Q", data, at)
        yield data[at + 8:at + 8 + count].decode()
        at += 8 + count


def random_bytes(count, seed):
    """Short strings of bytes: any, or such as look like UTF-8."""
    rng = random.Random(seed)
    alphabet = [bytes([b]) for b in range(256)] + [s.encode() for s in " aeT09.,'\n\t\u00e9\u4e2d\U0001f600\u0301<>|_"] * 8
    for _ in range(count):
        length = rng.randrange(24)
        yield rng.randbytes(length) if rng.random() < 0.3 else b"".join(rng.choices(alphabet, k=length))


def compare(name, document, texts, program, folder):
    """The number of texts whose ids or decoded text differ; the first three are shown."""
    path = os.path.join(folder, f"{name}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, ensure_ascii=False)
    inputs, ids_path, decoded_path = (os.path.join(folder, x) for x in ("texts", "ids", "decoded"))
    write(inputs, texts)
    done = subprocess.run([program, path, inputs, ids_path, decoded_path], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name}: {done.stderr}")
        return 1
    theirs = tokenizers.Tokenizer.from_file(path)
    differing = 0
    tokens = 0
    begin = time.time()
    for text, ids, decoded in zip(texts, read_ids(ids_path), read_texts(decoded_path), strict=True):
        expected = theirs.encode(as_text(text)).ids
        expected_text = theirs.decode(expected)
        tokens += len(expected)
        if ids == expected and decoded == expected_text:
            continue
        differing += 1
        if differing <= 3:
            at = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
            print(f"{name}: differs at token {at} of {len(expected)}: {as_text(text)[:60]!r}")
            if ids != expected:
                print("  zeroplan  ", [theirs.id_to_token(i) for i in ids[max(0, at - 3):at + 6]])
                print("  tokenizers", [theirs.id_to_token(i) for i in expected[max(0, at - 3):at + 6]])
            else:
                at = next((i for i, (a, b) in enumerate(zip(decoded, expected_text)) if a != b), 0)
                print(f"  decoded {decoded[max(0, at - 5):at + 20]!r} and {expected_text[max(0, at - 5):at + 20]!r}")
    size = sum(len(as_text(t).encode()) for t in texts)
    print(f"{name}: {len(texts)} texts, {size / 1e6:.1f} MB, {tokens} tokens: {differing} differ "
          f"({done.stdout.strip()}; tokenizers with decoding {time.time() - begin:.0f} s)", flush=True)
    return differing


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--mb", type=float, default=2)
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument("--only", nargs="*", default=list(structures.STRUCTURES))
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--cache", help="folder to keep trained tokenizers in")
    options = parser.parse_args()
    corpus = texts_module.corpus(options.mb)
    training = [text for text in texts_module.corpus(min(options.mb, 8), seed=2) if isinstance(text, str)]
    training = [text for text in training if len(text) < 500_000]
    rng = random.Random(3)
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            kept = os.path.join(options.cache, f"{name}.json") if options.cache else None
            if kept and os.path.exists(kept):
                document = json.load(open(kept, encoding="utf-8"))
            else:
                document = structures.build(name, training, options.vocab)
                if kept:
                    json.dump(document, open(kept, "w", encoding="utf-8"), ensure_ascii=False)
            specials = [token["content"] for token in document["added_tokens"]]
            texts = corpus + list(texts_module.specials(rng, options.mb * 1e4, specials))
            texts += random_bytes(options.random, rng.random())
            differing += compare(name, document, texts, options.program, folder)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
