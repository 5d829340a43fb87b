#!/usr/bin/env python3
"""Finds habits in comments that make them hard to read (CONTRIBUTING.md, "Rules of the code").

    scripts/check_prose.py                 # counts each habit over the whole tree, by folder
    scripts/check_prose.py FILE...         # prints each finding in files, tracked or not
    scripts/check_prose.py --since [REV]   # fails on findings in comments with a line added since REV
    scripts/check_prose.py --commits REV.. # fails on subjects without `area: ` or above 72 characters

REV defaults to $ZEROPLAN_BASE, else to the merge base with origin/main, else to HEAD~1. Without git, or where a shallow
clone lacks REV, the script prints that nothing was checked and passes.
"""
import argparse
import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CXX = {".h", ".hpp", ".cc", ".cpp", ".inc", ".cu", ".cuh"}
HASH = {".sh", ".cmake"}
SUBJECT_LENGTH = 72
AREA = r"[A-Za-z0-9][A-Za-z0-9_/-]*"
SUBJECT = re.compile(rf"{AREA}(, {AREA})*: \S")
# The start of a sentence after a pronoun that has no noun: a verb, a preposition or a clause word.
NO_NOUN = (r"(?:are|is|were|was|have|had|do|does|may|must|can|could|will|would|need|take|hold|stay|"
           r"of|that|which|who|whose|as|in|with|without|on|from|for|by|to|not|too|alone)\b|[,.;:]")
# Habit, scope ("comment": start of a comment; "sentence": start of each sentence; "text": anywhere), pattern.
RULES = [
    ("clause opening", "comment", re.compile(r"(?:of|what|where|which|with)\b", re.I)),
    ("no noun", "sentence", re.compile(rf"(?:Which\b|(?:These|Those|Such)(?:\s+(?:{NO_NOUN})|[,.;:]))")),
    ("own word", "text", re.compile(
        r"\bbeside\b|(?<!dot )(?<!inner )(?<!outer )(?<!cross )\bproducts\b|\bwhat is kept\b|\b128 bits over\b|"
        r"\b(?:is|are|was|were|be|been) had\b|\bgo(?:es)? with(?:out)?\b|"
        r"\b(?:has|have) not(?=\s*(?:[.,;:)]|$)|\s+(?:an?|the|any|one|its|their)\b)", re.I)),
    ("vague verb", "text", re.compile(r"\b(?:said|says|asked|com(?:e|es|ing) to)\b", re.I)),
]
HABITS = [habit for habit, _, _ in RULES]
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|⟦[^⟧]*⟧")
# A comment, a string or a character of a C++ source. Order matters: a raw string precedes a string.
CXX_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"([^()\\\s]{0,16})\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|"
    r"(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.S)


def cxx_pieces(text):
    """Yields (offset of the marker, the comment's text) of each C++ comment."""
    for token in CXX_TOKEN.finditer(text):
        if token[0].startswith("//"):
            yield token.start(), token[0].lstrip("/").lstrip("<!")
        elif token[0].startswith("/*"):
            yield token.start(), token[0][2:-2].strip("*")


def python_pieces(text):
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield starts[token.start[0] - 1] + token.start[1], token.string.lstrip("#")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node) is not None:
                yield starts[node.body[0].lineno - 1] + node.body[0].col_offset, node.body[0].value.value


def hash_pieces(text):
    """Yields the comments of shell and CMake: lines that begin with #, and what follows a # outside quotes."""
    offset = 0
    for line in text.splitlines(keepends=True):
        mark = re.match(r"\s*#(?!!)", line) or re.match(r"(?:[^\"'#\\]|\"[^\"]*\"|'[^']*'|\\.)*\s#(?=\s)", line)
        if mark:
            yield offset + mark.end() - 1, line[mark.end():].rstrip("\n")
        offset += len(line)


def comments(name, text):
    """Yields (first line, lines) of each comment: a run of adjacent whole-line comments, or a trailing comment with
    the whole-line comments below it in its column."""
    kind = Path(name).suffix
    if kind in CXX:
        pieces = cxx_pieces(text)
    elif kind == ".py":
        try:
            pieces = list(python_pieces(text))
        except (SyntaxError, tokenize.TokenError):
            return
    elif kind in HASH or Path(name).name == "CMakeLists.txt" or text.startswith(("#!/usr/bin/env bash", "#!/bin/sh")):
        pieces = hash_pieces(text)
    else:
        return
    first, lines, column = 0, [], -1
    for offset, piece in sorted(pieces):
        number = text.count("\n", 0, offset) + 1
        begin = text.rfind("\n", 0, offset) + 1
        whole = not text[begin:offset].strip()
        if lines and whole and number == first + len(lines) and offset - begin == column:
            lines += piece.split("\n")
            continue
        if lines:
            yield first, lines
        first, lines, column = number, piece.split("\n"), offset - begin
    if lines:
        yield first, lines


def sentences(lines):
    """Yields (index of the line, opens the comment, the sentence, the same with quoted text blanked)."""
    paragraph = []
    for index, line in enumerate(lines + [""]):
        if line.strip():
            paragraph.append((index, line))
            continue
        text, starts = "", []
        for at, part in paragraph:
            starts.append((len(text), at))
            text += part.strip() + " "
        blank = QUOTED.sub(lambda quoted: '"' + "_" * (len(quoted[0]) - 2) + '"', text)
        for sentence in re.finditer(r"\S.*?(?:[.!?](?=\s)|$)", blank):
            at = max(line for start, line in starts if start <= sentence.start())
            yield at, sentence.start() == 0 and at == 0, text[slice(*sentence.span())].strip(), sentence[0].strip()
        paragraph = []


def findings(name, text):
    """Yields (line of the sentence, first and last line of the comment, habit, the sentence)."""
    for first, lines in comments(name, text):
        for at, opens, sentence, plain in sentences(lines):
            for habit, scope, pattern in RULES:
                if scope == "comment" and not opens:
                    continue
                found = pattern.search(plain) if scope == "text" else pattern.match(plain)
                if found:
                    yield first + at, first, first + len(lines) - 1, habit, sentence


def git(*words):
    """The output of a git command; none where git or what is named is missing."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, encoding="utf-8", errors="replace")
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def read(name):
    path = ROOT / name
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def base():
    """The commit that a change starts from."""
    if os.environ.get("ZEROPLAN_BASE"):
        return os.environ["ZEROPLAN_BASE"]
    shared = (git("merge-base", "HEAD", "origin/main") or "").strip()
    return shared if shared and shared != (git("rev-parse", "HEAD") or "").strip() else "HEAD~1"


def added_lines(rev):
    """The numbers of each file's lines that the working tree adds to a commit; none where it is not here."""
    diff = git("-c", "core.quotePath=false", "diff", "-U0", "--no-color", "--no-ext-diff", "--dst-prefix=b/", rev, "--")
    if diff is None:
        return None
    added, name = {}, None
    for line in diff.split("\n"):
        if line.startswith("+++ "):
            name = line[6:].rstrip("\t") if line.startswith("+++ b/") else None
        hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if hunk and name:
            begin, count = int(hunk[1]), int(hunk[2] or 1)
            added.setdefault(name, set()).update(range(begin, begin + count))
    return added


def check_since(rev):
    added = added_lines(rev)
    if added is None:
        print(f"prose: no git or no commit {rev} here: comments were not checked")
        return 0
    found = [f"{name}:{line}: {habit}: {sentence}" for name, lines in sorted(added.items())
             for line, first, last, habit, sentence in findings(name, read(name))
             if not lines.isdisjoint(range(first, last + 1))]
    print("\n".join(found) or f"prose: comments added since {rev} read well", flush=True)
    return 1 if found else 0


def check_commits(span):
    log = git("log", "--no-merges", "--format=%h %s", span, "--")
    if log is None:
        print(f"prose: no git or no commits {span} here: subjects were not checked")
        return 0
    found = []
    for line in log.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT_LENGTH:
            found.append(f"{commit}: {len(subject)} characters, at most {SUBJECT_LENGTH}: {subject}")
        if not SUBJECT.match(subject):
            found.append(f"{commit}: does not start with `area: `: {subject}")
    print("\n".join(found) or f"prose: subjects of {span} are sound", flush=True)
    return 1 if found else 0


def print_counts():
    counts = {}
    for name in (git("ls-files") or "").splitlines():
        folder = name.split("/")[0] if "/" in name else "."
        counts.setdefault(folder, Counter()).update(habit for *_, habit, _ in findings(name, read(name)))
    counts["total"] = sum(counts.values(), Counter())
    print(f"{'':14}" + "".join(f"{habit:>16}" for habit in HABITS))
    for folder, row in counts.items():
        if row or folder == "total":
            print(f"{folder:14}" + "".join(f"{row[habit]:16}" for habit in HABITS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", nargs="?", const="", metavar="REV", help="check comments with lines added since")
    parser.add_argument("--commits", nargs="?", const="", metavar="REV..", help="check the subjects of commits")
    parser.add_argument("files", nargs="*", metavar="FILE", help="print the findings in files")
    args = parser.parse_args()
    status = 0
    if args.since is not None:
        status |= check_since(args.since or base())
    if args.commits is not None:
        status |= check_commits(args.commits or base() + "..HEAD")
    for name in args.files:
        for line, _, _, habit, sentence in findings(name, read(Path(name).resolve())):
            print(f"{name}:{line}: {habit}: {sentence}")
    if args.since is None and args.commits is None and not args.files:
        print_counts()
    return status


if __name__ == "__main__":
    sys.exit(main())
