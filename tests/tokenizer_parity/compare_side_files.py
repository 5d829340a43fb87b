"""Compares zeroplan's tokenizers with AutoTokenizer of the PyPI package `transformers`: ids of many texts, for
folders in which the files beside tokenizer.json decide ids, too (tokenizer_config.json, special_tokens_map.json,
added_tokens.json, the class of the tokenizer and the type of the model).

usage: compare_side_files.py ENCODE_TEXTS [--mb MB] [--random COUNT] [--only NAME...] [--cache FOLDER]

Prints a line for each folder and ends with 1 if ids differ, or if a folder is refused that is not to be.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
try:
    import tokenizers
    from transformers import AutoTokenizer
except ImportError:
    print("the packages `transformers` and `tokenizers` are not installed")
    sys.exit(77)

import compare_tokenizers as bare
import structures
import texts as texts_module


def flags(content, special=True, **changed):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": special, **changed}


def marked(content, **changed):
    return {"__type": "AddedToken", **flags(content, **changed)}


class Case:
    """A folder: the structure of its tokenizer.json, and the files beside it."""

    def __init__(self, structure, config=None, model=None, special_map=None, added=None, refused=None):
        self.structure, self.config, self.model = structure, config, model
        self.special_map, self.added, self.refused = special_map, added, refused


def number(document, content):
    """The id that the token has, or gets as the next one."""
    known = {t["content"]: t["id"] for t in document["added_tokens"]}
    vocab = document["model"]["vocab"]
    return known.get(content, vocab.get(content))


def decoder(*tokens):
    """added_tokens_decoder of these tokens: the document's own ids, and behind them for the new ones."""
    def make(document):
        following = max([*document["model"]["vocab"].values(), *(t["id"] for t in document["added_tokens"])]) + 1
        ids = {}
        for token in tokens:
            found = number(document, token["content"])
            ids[str(following if found is None else found)] = token
            following += found is None
        return ids
    return make


def names(**tokens):
    return tokens


LLAMA = names(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
CASES = {
    # Tokens and flags that tokenizer_config.json alone has.
    "config_tokens": Case("llama3", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|tool|>", "added_tokens_decoder": decoder(
        flags("<|tool|>"), flags("word", special=False, single_word=True, normalized=True),
        flags("<|left|>", lstrip=True), flags("<|right|>", special=False, rstrip=True))}),
    "config_flags": Case("qwen2", {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": decoder(
        flags("<|endoftext|>", lstrip=True), flags("<|im_start|>", special=False, rstrip=True, normalized=True))}),
    # Without it: special_tokens_map.json, whose tokens may be words of the vocabulary, and added_tokens.json.
    "special_map": Case("smollm2", names(pad_token="<pad>", eos_token="<|endoftext|>"), special_map=names(
        eos_token=flags(" the", lstrip=False, special=True), bos_token="<bos>", cls_token=flags("<cls>", rstrip=True),
        additional_special_tokens=["<extra>", "the"])),
    "added_tokens": Case("smollm2", {}, added=lambda document: {
        "<a>": len(document["model"]["vocab"]) + 3, "<b b>": len(document["model"]["vocab"]) + 4,
        "of": number(document, "of")}, special_map=names(unk_token="<a>")),
    # Names of the model's own, extra tokens as an object and as a list.
    "extra_object": Case("qwen3", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "image_token": "<image>",
                                   "video_token": marked("<video>", lstrip=True),
                                   "extra_special_tokens": {"boi_token": "<boi>", "eoi": "<eoi>"},
                                   "additional_special_tokens": ["<left out>", "<too>"]}),
    "extra_list": Case("mistral_v03", {"extra_special_tokens": ["[INST]", "<x>", marked("<y>", rstrip=True)],
                                       "additional_special_tokens": ["<not>"], **LLAMA}),
    # Classes that make a tokenizer of their own of vocabulary and merges.
    "gpt2": Case("gpt2", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}, {"model_type": "gpt2"}),
    "gpt2_prefix": Case("gpt2", {"add_prefix_space": True, "pad_token": "<pad>"}, {"model_type": "gpt2"}),
    "gpt2_backend": Case("gpt2", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True, "add_bos_token": True,
                                  "bos_token": "<|endoftext|>"}, {"model_type": "llama"}),
    "llama2": Case("llama2", {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "add_eos_token": True,
                              **{k: marked(v) for k, v in LLAMA.items()}}, {"model_type": "llama"}),
    "llama2_legacy": Case("llama2", {"tokenizer_class": "LlamaTokenizerFast", "legacy": True, "pad_token": "<pad>", **LLAMA,
                                     "added_tokens_decoder": decoder(flags("<unk>"), flags("<s>"), flags("</s>"), flags("<pad>"),
                                                                     flags("<tool>", special=False, normalized=True))},
                          {"model_type": "llama"}),
    "llama2_no_prefix": Case("llama2", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, **LLAMA}, {"model_type": "llama"}),
    "llama2_as_file": Case("llama2", {"tokenizer_class": "PreTrainedTokenizerFast", **LLAMA}, {"model_type": "llama"}),
    "mistral": Case("mistral_v03", {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_prefix_space": True, **LLAMA},
                    {"model_type": "mistral"}),
    "llama3_class": Case("llama3", {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|begin_of_text|>"}, {"model_type": "llama"}),
    "qwen2": Case("qwen2", {"tokenizer_class": "Qwen2Tokenizer", "errors": "replace", "bos_token": None, "unk_token": None,
                            "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "split_special_tokens": False,
                            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
                            "added_tokens_decoder": decoder(flags("<|endoftext|>"), flags("<|im_start|>", lstrip=True), flags("<|im_end|>"),
                                                            flags("<think>", special=False))}, {"model_type": "qwen2"}),
    "qwen2_of_llama": Case("deepseek_v3", {"tokenizer_class": "LlamaTokenizerFast", "bos_token": marked("<bos>"), "eos_token": "<eos>",
                                           "pad_token": "<eos>", "unk_token": None}, {"model_type": "qwen2"}),
    "qwen3_alone": Case("o200k", None, {"model_type": "qwen3"}),
    "gpt_neox": Case("smollm2", {"tokenizer_class": "GPTNeoXTokenizerFast", "add_eos_token": True}, {"model_type": "llama"}),
    "gemma": Case("gemma", {"tokenizer_class": "GemmaTokenizer", "mask_token": "<2mass>"}, {"model_type": "gemma"}),
    # Special tokens in texts are no tokens.
    "split_special": Case("qwen3", {"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": True, "eos_token": "<|im_end|>",
                                    "added_tokens_decoder": decoder(flags("<|im_end|>"), flags("of the", special=False))}),
    "split_special_llama": Case("llama2", {"tokenizer_class": "LlamaTokenizer", "split_special_tokens": True, **LLAMA}, {"model_type": "llama"}),
    "no_files": Case("mistral_nemo", None),
    # Refused, with the key.
    "code_llama": Case("llama2", {"tokenizer_class": "CodeLlamaTokenizer", **LLAMA}, {"model_type": "llama"}, refused="tokenizer_class"),
    "other_ids": Case("llama3", {"added_tokens_decoder": lambda document: {"9999": flags("<|far|>")}}, refused="added_tokens_decoder.9999"),
}


def made(value, document):
    if callable(value):
        return value(document)
    return {k: made(v, document) for k, v in value.items()} if isinstance(value, dict) else value


def write_folder(case, document, folder):
    files = {"tokenizer.json": document, "tokenizer_config.json": made(case.config, document), "config.json": case.model,
             "special_tokens_map.json": case.special_map, "added_tokens.json": made(case.added, document)}
    for name, content in files.items():
        if content is not None:
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                json.dump(content, file, ensure_ascii=False)


def contents(value):
    """All texts in the side files: those that are tokens are among them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from contents(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from contents(inner)
    elif isinstance(value, str):
        yield value


def compare(name, case, document, corpus, options, folder):
    """Whether ids are the same, or the folder is refused as it is to be; says what is not."""
    where = os.path.join(folder, name)
    os.mkdir(where)
    write_folder(case, document, where)
    rng = random.Random(5)
    sides = [made(case.config, document) or {}, case.special_map or {}, made(case.added, document) or {}]
    special = [t["content"] for t in document["added_tokens"]] + [t for t in contents(sides) if 2 < len(t) < 30]
    texts = corpus + list(texts_module.specials(rng, options.mb * 1e5 + 2e4, special))
    texts += bare.random_bytes(options.random, rng.random())
    texts = [text for text in map(bare.as_text, texts)]
    inputs, ids_path, decoded_path = (os.path.join(folder, x) for x in ("texts", "ids", "decoded"))
    bare.write(inputs, texts)
    done = subprocess.run([options.program, where, inputs, ids_path, decoded_path], capture_output=True, text=True)
    if case.refused or done.returncode != 0:
        is_right = case.refused is not None and done.returncode != 0 and case.refused in done.stderr
        print(f"{name}: {'refused' if is_right else 'NOT AS IT SHOULD BE'}: {done.stderr.strip()}", flush=True)
        return is_right
    theirs = AutoTokenizer.from_pretrained(where)
    differing = tokens = 0
    for text, ids in zip(texts, bare.read_ids(ids_path), strict=True):
        expected = theirs(text)["input_ids"]
        tokens += len(expected)
        if ids == expected:
            continue
        differing += 1
        if differing <= 3:
            at = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
            print(f"{name}: differs at token {at} of {len(expected)}: {text[:60]!r}")
            print("  zeroplan    ", theirs.convert_ids_to_tokens(ids[max(0, at - 3):at + 6]))
            print("  transformers", theirs.convert_ids_to_tokens(expected[max(0, at - 3):at + 6]))
    print(f"{name}: {type(theirs).__name__}, {len(texts)} texts, {tokens} tokens: {differing} differ", flush=True)
    return differing == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--mb", type=float, default=0.1)
    parser.add_argument("--random", type=int, default=300)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--vocab", type=int, default=3000)
    parser.add_argument("--cache", help="folder to keep trained tokenizers in")
    options = parser.parse_args()
    corpus = texts_module.corpus(options.mb)
    training = [t for t in texts_module.corpus(1, seed=2) if isinstance(t, str) and len(t) < 500_000]
    documents = {}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            structure = CASES[name].structure
            if structure not in documents:
                kept = os.path.join(options.cache, f"{structure}.json") if options.cache else None
                if kept and os.path.exists(kept):
                    documents[structure] = json.load(open(kept, encoding="utf-8"))
                else:
                    documents[structure] = structures.build(structure, training, options.vocab)
                    if kept:
                        json.dump(documents[structure], open(kept, "w", encoding="utf-8"), ensure_ascii=False)
            failed += not compare(name, CASES[name], documents[structure], corpus, options, folder)
    print(f"{len(options.only)} folders, {failed} not as AutoTokenizer of transformers has them "
          f"(tokenizers {tokenizers.__version__})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
