"""tokenizer.json files with the structure of published ones and small vocabularies of their own.

Normalizer, pre-tokenizer, post-processor, decoder and options of the model are those of the family that a
structure is named after. The vocabulary is trained by the PyPI package `tokenizers` on a text that is given.
"""
import json

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(add_prefix_space=False, trim_offsets=True, use_regex=True):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": trim_offsets,
            "use_regex": use_regex}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def template(before, after=()):
    def tokens(names):
        return [{"SpecialToken": {"id": name, "type_id": 0}} for name in names]
    single = tokens(before) + [{"Sequence": {"id": "A", "type_id": 0}}] + tokens(after)
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {name: {"id": name, "ids": [], "tokens": [name]} for name in [*before, *after]}}


def metaspace(**options):
    return {"type": "Metaspace", "replacement": "\u2581", **options}


FALLBACK_DECODER = sequence(
    "decoders", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
PREPEND = sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"},
                   {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})
NFC = {"type": "NFC"}
LLAMA2_SPECIALS = [("<unk>", {}), ("<s>", {}), ("</s>", {})]
DEEPSEEK_SPLITS = [
    split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
    {"type": "Digits", "individual_digits": True}, byte_level(use_regex=False)]

# name: normalizer, pre_tokenizer, post_processor, decoder, model options, added tokens (name, flags; special
# unless said otherwise), whether bytes are tokens of the form <0x00>.
STRUCTURES = {
    "gpt2": dict(pre_tokenizer=byte_level(), post_processor=byte_level(trim_offsets=False), decoder=byte_level(),
                 model={"unk_token": "", "continuing_subword_prefix": "", "end_of_word_suffix": ""},
                 tokens=[("<|endoftext|>", {"normalized": True})]),
    "llama3": dict(
        pre_tokenizer=sequence("pretokenizers", split(LLAMA3), byte_level(use_regex=False)),
        post_processor=sequence("processors", byte_level(), template(["<|begin_of_text|>"])),
        decoder=byte_level(), model={"ignore_merges": True},
        tokens=[("<|begin_of_text|>", {}), ("<|end_of_text|>", {}), ("<|eot_id|>", {})]),
    "qwen2": dict(
        normalizer=NFC,
        pre_tokenizer=sequence("pretokenizers", split(QWEN), byte_level(trim_offsets=False, use_regex=False)),
        post_processor=byte_level(trim_offsets=False, use_regex=False),
        decoder=byte_level(trim_offsets=False, use_regex=False),
        model={"continuing_subword_prefix": "", "end_of_word_suffix": ""},
        tokens=[("<|endoftext|>", {}), ("<|im_start|>", {}), ("<|im_end|>", {})]),
    "qwen3": dict(
        normalizer=NFC,
        pre_tokenizer=sequence("pretokenizers", split(QWEN), byte_level(trim_offsets=False, use_regex=False)),
        post_processor=byte_level(trim_offsets=False, use_regex=False),
        decoder=byte_level(trim_offsets=False, use_regex=False),
        model={"continuing_subword_prefix": "", "end_of_word_suffix": ""},
        tokens=[("<|endoftext|>", {}), ("<|im_start|>", {}), ("<|im_end|>", {}),
                ("<tool_call>", {"special": False}), ("<think>", {"special": False}),
                ("</think>", {"special": False})]),
    "smollm2": dict(
        pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level()),
        decoder=byte_level(), tokens=[("<|endoftext|>", {}), ("<|im_start|>", {}), ("<repo_name>", {})]),
    "llama2": dict(
        normalizer=PREPEND, post_processor=template(["<s>"]), decoder=FALLBACK_DECODER,
        model={"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}, tokens=LLAMA2_SPECIALS,
        fallback=True),
    "mistral_v01": dict(
        normalizer=PREPEND, post_processor=template(["<s>"], ["</s>"]), decoder=FALLBACK_DECODER,
        model={"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "ignore_merges": False},
        tokens=[("<unk>", {"normalized": True}), ("<s>", {"normalized": True}), ("</s>", {"rstrip": True})],
        fallback=True),
    "mistral_v03": dict(
        pre_tokenizer=metaspace(prepend_scheme="first", split=False), post_processor=template(["<s>"]),
        decoder=FALLBACK_DECODER,
        model={"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
        tokens=LLAMA2_SPECIALS + [("[INST]", {}), ("[/INST]", {})], fallback=True),
    "mistral_nemo": dict(
        pre_tokenizer=sequence("pretokenizers", split(TEKKEN), byte_level(use_regex=False)),
        post_processor=template(["<s>"]), decoder=byte_level(), model={"ignore_merges": True},
        tokens=LLAMA2_SPECIALS + [("[INST]", {}), ("[/INST]", {})]),
    "gemma": dict(
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"), post_processor=template(["<bos>"]),
        decoder=sequence("decoders", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                         {"type": "ByteFallback"}, {"type": "Fuse"}),
        model={"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "ignore_merges": False},
        tokens=[("<pad>", {}), ("<eos>", {}), ("<bos>", {}), ("<unk>", {}), ("<start_of_turn>", {}),
                ("<end_of_turn>", {}), ("<table>", {"special": False})], fallback=True),
    "metaspace_always": dict(
        normalizer={"type": "NFKC"}, pre_tokenizer=metaspace(add_prefix_space=True),
        decoder=metaspace(prepend_scheme="always", split=True),
        model={"unk_token": "<unk>", "byte_fallback": False, "fuse_unk": True},
        tokens=LLAMA2_SPECIALS + [("<mask>", {"lstrip": True}), ("<word>", {"single_word": True})]),
    "yi": dict(
        normalizer=sequence("normalizers", {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}),
        decoder=sequence("decoders", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                         {"type": "ByteFallback"}, {"type": "Fuse"}),
        model={"unk_token": "<unk>", "byte_fallback": True}, tokens=LLAMA2_SPECIALS, fallback=True),
    "deepseek_llm": dict(
        normalizer=sequence("normalizers"), pre_tokenizer=sequence("pretokenizers", *DEEPSEEK_SPLITS),
        post_processor=template(["<bos>"]), decoder=byte_level(),
        tokens=[("<bos>", {"normalized": True}), ("<eos>", {"normalized": True})]),
    "deepseek_v3": dict(
        normalizer=sequence("normalizers"),
        pre_tokenizer=sequence("pretokenizers", split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                               split(DEEPSEEK3), byte_level(use_regex=False)),
        post_processor=template(["<bos>"]), decoder=byte_level(), tokens=[("<bos>", {}), ("<eos>", {})]),
    "o200k": dict(
        pre_tokenizer=sequence("pretokenizers", split(O200K, "Removed", True), byte_level(use_regex=False)),
        decoder=byte_level(), tokens=[("<|endoftext|>", {})]),
    "falcon": dict(
        pre_tokenizer=sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(),
                               {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")),
        post_processor=byte_level(add_prefix_space=True), decoder=byte_level(add_prefix_space=True),
        tokens=[(">>TITLE<<", {}), ("<|endoftext|>", {})]),
    "oniguruma": dict(  # what only Oniguruma has, among code points that its versions agree on
        pre_tokenizer=sequence("pretokenizers", split(r"(?<pair>\p{L})\k<pair>"),
                               split(r"(?<![^\x00-\u024f])\b\p{Lu}\p{Ll}*\b(?![^\x00-\u024f])"),
                               split(r"[\p{Han}&&[\u4e00-\u9fa5]&&[^\u4e2d]]+|[\p{Arabic}&&[\u0600-\u06ff]]+", "MergedWithNext"),
                               split(r"(\()[^()]*+\)\K"), split(r"(?i:stra\u00df|ss|i)", "MergedWithPrevious"),
                               split(r"[[:digit:]&&[0-46-9]]+"), byte_level(use_regex=False)),
        decoder=byte_level(), tokens=[("<|endoftext|>", {})]),
    "prefix_space": dict(  # as RoBERTa's
        pre_tokenizer=byte_level(add_prefix_space=True), decoder=byte_level(add_prefix_space=True),
        tokens=[("<s>", {}), ("<mask>", {"lstrip": True, "rstrip": True})]),
}


def build(name, texts, vocab_size, limit_alphabet=None):
    """The tokenizer.json of a structure, as a dict."""
    structure = STRUCTURES[name]
    fallback = structure.get("fallback", False)
    pre_tokenizer = structure.get("pre_tokenizer")
    spelt = pre_tokenizer is not None and "ByteLevel" in json.dumps(pre_tokenizer)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    if spelt:
        document = json.loads(tokenizer.to_str())
        document["pre_tokenizer"] = pre_tokenizer
        tokenizer = Tokenizer.from_str(json.dumps(document))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, limit_alphabet=limit_alphabet or 1000, special_tokens=[] if spelt else ["<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if spelt else [])
    tokenizer.train_from_iterator(texts, trainer)
    document = json.loads(tokenizer.to_str())
    names = [token for token, _ in structure["tokens"]]
    vocab = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    vocab = [token for token in vocab if token not in names]
    merges = document["model"]["merges"]
    if fallback:  # specials and bytes come first, runs of blanks are tokens
        runs = ["\u2581" * count for count in (2, 4, 8)]
        vocab = [*names, *(f"<0x{byte:02X}>" for byte in range(256)), *vocab, *(r for r in runs if r not in vocab)]
        for run in runs:
            half = run[:len(run) // 2]
            if [half, half] not in merges:
                merges.append([half, half])
    elif not spelt:
        vocab = [*names, *vocab]
    document["model"]["vocab"] = {token: index for index, token in enumerate(vocab)}
    if name not in ("llama3", "mistral_v03"):  # the older layout
        document["model"]["merges"] = [" ".join(pair) for pair in merges]
    document["model"].update(dict(unk_token=None, fuse_unk=False, byte_fallback=False),
                             **structure.get("model", {}))
    ids = dict(document["model"]["vocab"])
    for token in names:
        ids.setdefault(token, max(ids.values()) + 1)
    document["added_tokens"] = [
        {"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True, **flags} for token, flags in structure["tokens"]]
    for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        document[key] = json.loads(json.dumps(structure.get(key)))
    fill_ids(document["post_processor"], ids)
    Tokenizer.from_str(json.dumps(document))  # the package takes it
    return document


def fill_ids(post_processor, ids):
    if post_processor is None:
        return
    for inner in post_processor.get("processors", []):
        fill_ids(inner, ids)
    for token in post_processor.get("special_tokens", {}).values():
        token["ids"] = [ids[token["id"]]]
