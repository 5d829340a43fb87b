"""Texts to compare tokenizers on: from this machine's files, and generated. A seed gives the same again."""
import gettext
import gzip
import os
import random
import sys
import unicodedata

WORDS = "the of and to in is that it was for on are as with they be at one have this from".split()


def files(root, endings):
    for folder, inner, names in os.walk(root):
        inner.sort()
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.join(folder, name)


def read(path):
    try:
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rb") as file:
            return file.read(400_000).decode("utf-8", errors="replace")
    except (OSError, EOFError):
        return ""


def from_files(root, endings, bytes_wanted, rng):
    """Texts of files under a folder, in an order of their own, up to a size."""
    paths = list(files(root, endings))
    rng.shuffle(paths)
    got = 0
    for path in paths:
        text = read(path)
        if not text:
            continue
        yield text
        got += len(text.encode())
        if got > bytes_wanted:
            return


def translations(bytes_wanted, rng, languages=None):
    """What programs say in other languages."""
    paths = [p for p in files("/usr/share/locale", ".mo") if languages is None or p.split("/")[4] in languages]
    rng.shuffle(paths)
    got = 0
    for path in paths:
        try:
            with open(path, "rb") as file:
                catalog = gettext.GNUTranslations(file)._catalog
        except (OSError, LookupError, ValueError):  # not a catalog, or a header of another form
            continue
        text = "\n".join(value for value in catalog.values() if isinstance(value, str))
        yield text
        got += len(text.encode())
        if got > bytes_wanted:
            return


def script(first, last, rng, bytes_wanted, mean_word, marks=""):
    """Words of one script's characters, common ones more often, with punctuation and digits between them."""
    characters = [chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)) in ("Lo", "Ll", "Lu", "Lm")]
    rng.shuffle(characters)
    weights = [1 / (i + 3) for i in range(len(characters))]
    words = ["".join(rng.choices(characters, weights, k=1 + int(rng.expovariate(1 / mean_word)))) for _ in range(3000)]
    if marks:
        words += ["".join(c + (rng.choice(marks) if rng.random() < 0.4 else "") for c in word) for word in words]
    got = 0
    while got < bytes_wanted:
        pieces = []
        for _ in range(2000):
            pieces.append(words[min(int(rng.paretovariate(0.6)) - 1, len(words) - 1)])
            pieces.append(rng.choices([" ", "", "\u3002", "\uff0c", ", ", ". ", "\n", " 2024 ", "\u3000", "!"],
                                      [8, 8, 1, 1, 1, 1, 1, 1, 0.3, 0.5])[0])
        text = "".join(pieces)
        yield text
        got += len(text.encode())


def emoji(rng, bytes_wanted):
    faces = [chr(c) for c in (*range(0x1F300, 0x1F650), *range(0x1F680, 0x1F700), *range(0x1F900, 0x1FA00),
                              *range(0x2600, 0x27C0))]
    extras = ["\u200d", "\ufe0f", "\U0001f3fd", "\U0001f1e9\U0001f1ea", "\u20e3", " ", "\n", "lol ", "#", "7\ufe0f\u20e3"]
    got = 0
    while got < bytes_wanted:
        text = "".join(rng.choice(faces) if rng.random() < 0.6 else rng.choice(extras) for _ in range(3000))
        yield text
        got += len(text.encode())


def spaces(rng, bytes_wanted):
    blanks = [" ", "  ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\x0b", "\x0c", "\x85", "\u2028", "    ",
              "\u180e", "\u200b", "\ufeff", "\x1c", "\x00"]
    got = 0
    while got < bytes_wanted:
        pieces = []
        for _ in range(1500):
            pieces.append(rng.choice(blanks) * int(rng.paretovariate(1)) if rng.random() < 0.01
                          else rng.choice(blanks) * rng.randint(1, 6))
            pieces.append(rng.choice([*WORDS, "'s", "'LL", "'\u017f", "12345", "x=1;", "//", "", "\u0661\u0662", "\u00bd"]))
        text = "".join(pieces)[:200_000]
        yield text
        got += len(text.encode())


def long_words(rng, bytes_wanted):
    got = 0
    while got < bytes_wanted:
        kind = rng.randrange(5)
        length = rng.choice([1000, 20_000, 100_000])
        if kind == 0:
            text = rng.choice("a =-\u4e2d1\n\u00e9") * length
        elif kind == 1:
            text = "".join(rng.choice("etaoinshrdlu") for _ in range(length))
        elif kind == 2:
            text = "".join(rng.choice("ACGT") for _ in range(length))
        elif kind == 3:
            text = rng.randbytes(length // 2).hex()
        else:
            text = (rng.choice(WORDS) + rng.choice(["_", "-", ""])) * (length // 8)
        yield text
        got += len(text.encode())


def random_points(rng, bytes_wanted):
    """Any code points, assigned or not, between ASCII."""
    got = 0
    while got < bytes_wanted:
        points = []
        for _ in range(2000):
            kind = rng.random()
            limit = 0x80 if kind < 0.3 else 0x3000 if kind < 0.6 else 0x11000 if kind < 0.7 else 0x20000 if kind < 0.9 else 0x110000
            c = rng.randrange(limit)
            points.append(chr(c) if not 0xD800 <= c < 0xE000 else " ")
        text = "".join(points)
        yield text
        got += len(text.encode())


def combining(rng, bytes_wanted):
    """Letters with marks in any order, Hangul in parts, ligatures: what normal forms change."""
    base = "aeiouAEIOUyncsSzZ\u03b1\u03c9\u0627\u0648\u09c7\u0b95\u1100\u1112\u1161\u1175\u11a8\u11c2\uac00\ufb01\u2460\u3231"
    marks = "".join(chr(c) for c in (*range(0x300, 0x345), 0x591, 0x5B0, 0x64B, 0x653, 0x655, 0x9BE, 0x1161, 0x11A8,
                                     0x3099, 0x0F71, 0x0F72, 0x1DC0))
    got = 0
    while got < bytes_wanted:
        text = "".join(rng.choice(base) + "".join(rng.choices(marks, k=rng.choice([0, 0, 1, 1, 2, 4]))) +
                       rng.choice(["", "", " "]) for _ in range(2000))
        yield text
        got += len(text.encode())


def broken(rng, bytes_wanted, good):
    """Bytes that are no UTF-8, in and around text, as Python replaces them."""
    got = 0
    while got < bytes_wanted:
        data = bytearray(rng.choice(good).encode()[:8000])
        for _ in range(len(data) // 20 + 1):
            at = rng.randrange(len(data) + 1)
            data[at:at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
        yield bytes(data)
        got += len(data)


def specials(rng, bytes_wanted, tokens):
    """Text with added tokens in it, whole and in parts, with blanks around them."""
    got = 0
    while got < bytes_wanted:
        pieces = []
        for _ in range(500):
            token = rng.choice(tokens) if tokens else "<x>"
            pieces.append(rng.choice([token, token, token[:-1], token[1:], " " + token + " ", rng.choice(WORDS), " ", "\n",
                                      token + "  \n", "\u4e2d", "a" + token + "b"]))
        text = "".join(pieces)
        yield text
        got += len(text.encode())


def corpus(megabytes, seed=1):
    """Texts (str, or bytes that are no UTF-8) of about so many MB in all."""
    rng = random.Random(seed)
    unit = megabytes * 1e6 / 50
    texts = []
    texts += from_files(os.path.dirname(os.__file__), ".py", 8 * unit, rng)
    texts += from_files("/usr/include", (".h", ".hpp", ".cc"), 6 * unit, rng)
    texts += from_files("/usr/share/doc", ("copyright", ".gz", ".txt", ".md", ".html"), 6 * unit, rng)
    texts += from_files("/usr/share/man", ".gz", 4 * unit, rng)
    texts += translations(6 * unit, rng)
    texts += translations(3 * unit, rng, ("zh_CN", "zh_TW", "ja", "ko", "ar", "hi", "ru", "he", "th", "fa"))
    texts += script(0x4E00, 0x9FA5, rng, 5 * unit, 1.5)
    texts += script(0x0620, 0x06D3, rng, 2 * unit, 5, "\u064b\u064e\u064f\u0650\u0651\u0652\u0653")
    texts += script(0xAC00, 0xD7A3, rng, 1 * unit, 2)
    texts += script(0x0904, 0x0939, rng, 1 * unit, 3, "\u093e\u093f\u0940\u094d\u093c")
    texts += emoji(rng, 2 * unit)
    texts += spaces(rng, 2 * unit)
    texts += long_words(rng, 2 * unit)
    texts += random_points(rng, 2 * unit)
    texts += combining(rng, 1 * unit)
    good = [text for text in texts if text]
    texts += broken(rng, 2 * unit, good)
    sys.stderr.write(f"{len(texts)} texts\n")
    return texts
