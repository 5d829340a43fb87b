"""Writes tests/fixtures/tokenizers: tiny tokenizers of each structure, and what the PyPI package `tokenizers`
makes of some texts with them.

usage: make_fixtures.py FOLDER [NAME...]    (default: all)
"""
import json
import os
import sys

import structures
from tokenizers import Tokenizer, __version__

TEXTS = [
    "", " ", "  ", "\n", "a", "Hello, world!", " Hello  world ", "The theory of the thing is that it isn't there.",
    "I'LL we've DON'T you'\u017f 'S's", "x = 3.14159; y[i] += 1234567\n\n\tif (a != b) {\r\n    return;\r\n}\n",
    "   leading, trailing   \n \n  ", "\u4e2d\u6587\u5206\u8bcd\uff0c\u6d4b\u8bd5\u3002\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8\u3067\u3059 \ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0639\u064e\u0631\u064e\u0628\u0650\u064a\u0651\u0629 \u0661\u0662\u0663", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f600\ufe0f#\u20e3",
    "caf\u00e9 cafe\u0301 \u1112\u1161\u11ab \ufb01 \u2460 A\u030a\u0323", "\u00a0\u2003\u3000x\u0085y\u200bz\ufeff\u180e",
    "\u2581under \u2581 \u2581\u2581", "a<s>b</s>  c <unk><mask>d <word> e<word>", "<|endoftext|>x<|im_start|>user\n<|im_end|><think>\n</think>",
    "[INST] hi [/INST] <|begin_of_text|><|eot_id|> <bos>z<eos> >>TITLE<<", "<0x41><0xE4> \ufffd \x00 \x7f \x1c",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 2,
    "supercalifragilisticexpialidocious-antidisestablishmentarianism_and_more_of_that_kind",
    "\u0897\U00011de3\U000323ab\U0001e08f \ua7f2 \u24b6\u00b2\u00bd\u2160 \u0e33", "CamelCase ALLCAPS HTTPServer \u01c5x \u00df \u0130",
]


def main():
    folder = sys.argv[1]
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    training = [open(os.path.join(source, name), encoding="utf-8").read()
                for name in ("README.md", "docs/planning.md")]
    training += ["\u4e2d\u6587\u5206\u8bcd\uff0c\u4e2d\u6587\u6d4b\u8bd5\u3002 caf\u00e9 "] * 20
    os.makedirs(folder, exist_ok=True)
    for name in sys.argv[2:] or structures.STRUCTURES:
        spelt = "ByteLevel" in json.dumps(structures.STRUCTURES[name].get("pre_tokenizer"))
        document = structures.build(name, training, 460 if spelt else 330, limit_alphabet=None if spelt else 90)
        path = os.path.join(folder, f"{name}.json")
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        tokenizer = Tokenizer.from_file(path)
        cases = []
        for case in TEXTS:
            ids = tokenizer.encode(case).ids
            bare = tokenizer.encode(case, add_special_tokens=False).ids
            cases.append({"text": case, "ids": ids, "bare": len(bare), "decoded": tokenizer.decode(ids),
                          "decoded_all": tokenizer.decode(ids, skip_special_tokens=False)})
        expected = {"tokenizers": __version__, "cases": cases}
        with open(os.path.join(folder, f"{name}.expected"), "w", encoding="utf-8") as file:
            file.write(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
