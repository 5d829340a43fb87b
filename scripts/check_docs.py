#!/usr/bin/env python3
"""Checks the documentation: every relative link and anchor in the tree's *.md files resolves, every
path of a source file in them exists, every page of docs/ stands in docs/README.md, and README.md
keeps its length.

    scripts/check_docs.py             # exit code 1 and a line for each breach
    scripts/check_docs.py --figures   # the figures (with %, tokens/s) that stand on several pages
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README_LINES = 150
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
SOURCE = re.compile(r"(?<![\w./~<-])(?:core|hwprofiles|machine|cost_models|planner|text|reader|executor|"
                    r"cli|library|python|packaging|scripts|tests|benchmarks|examples)/[\w./-]*[\w/]")
ENDINGS = ("", ".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".inc")
FENCE = re.compile(r"^(```|~~~)")
FIGURE = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)? ?(?:%|tokens/s|tokens a second|tok/s)")


def pages():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT,
                            capture_output=True, text=True).stdout.split("\n")
    found = [ROOT / name for name in listed if name] or ROOT.rglob("*.md")
    return sorted(path for path in found
                  if path.is_file() and "build" not in path.relative_to(ROOT).parts)


def prose(path):
    """Lines outside fenced and indented blocks, code spans blanked."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if FENCE.match(line):
            fenced = not fenced
            continue
        if not fenced and not line.startswith("    "):
            yield number, line


def anchors(path):
    """The anchors that GitHub gives a page's headings."""
    seen = {}
    for _, line in prose(path):
        heading = re.match(r"#{1,6} +(.*?)\s*#*$", line)
        if not heading:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        yield f"{slug}-{count}" if count else slug


def breaches():
    known = {}
    for page in pages():
        name = page.relative_to(ROOT)
        # A link may be broken over two lines.
        lines = list(prose(page))
        if page.name != "CHANGELOG.md":
            for number, line in lines:
                for path in SOURCE.findall(line):
                    if re.search(r"NAME|MACHINE|_$", path):  # it stands for any
                        continue
                    if not any((ROOT / (path + ending)).exists() for ending in ENDINGS):
                        yield f"{name}:{number}: {path}: no such file"
        text = "\n".join(re.sub(r"`[^`]*`", "", line) for _, line in lines)
        for link in LINK.finditer(text):
            target = link[1]
            if re.match(r"[a-z]+:", target):
                continue
            number = lines[text.count("\n", 0, link.start())][0]
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            if not there.exists():
                yield f"{name}:{number}: {target}: no such file"
            elif anchor and there.suffix == ".md":
                if there not in known:
                    known[there] = set(anchors(there))
                if anchor not in known[there]:
                    yield f"{name}:{number}: {target}: no such heading"
    index = ROOT / "docs" / "README.md"
    listed = index.read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page != index and f"]({page.name})" not in listed:
            yield f"docs/README.md: does not list {page.name}"
    length = (ROOT / "README.md").read_text(encoding="utf-8").count("\n")
    if length > README_LINES:
        yield f"README.md: {length} lines; at most {README_LINES}"


def figures():
    where = {}
    for page in pages():
        if page.name == "CHANGELOG.md":
            continue
        for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
            for figure in FIGURE.findall(line):
                where.setdefault(figure, []).append((page.relative_to(ROOT), number, line.strip()))
    for figure, places in sorted(where.items()):
        if len({page for page, _, _ in places}) > 1:
            print(figure)
            for page, number, line in places:
                print(f"    {page}:{number}: {line[:110]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--figures", action="store_true",
                        help="print the figures that stand on several pages, with where")
    if parser.parse_args().figures:
        figures()
        return 0
    found = list(breaches())
    print("\n".join(found) or "documentation: links and lists are sound", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
