"""Opens the pages of --report in headless Chromium as wide as a screen and as a phone, light and dark: no
text is cut off, under 10 pixels, out of its picture, over another one or on a capacity line, the page does not
scroll sideways, and the console stays empty. Pages of the README's examples also have the pictures and rows that
are listed in outline.txt beside this file.

    open_pages.py build/release [--chromium PROGRAM] [--shots docs/pictures [--run PAGE]] [--write-outline]

--shots writes screenshots of the examples' pages, of the run that of PAGE, which is longer; --write-outline makes
outline.txt anew. Exits with 77 where there is no Chromium.
"""
import argparse
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Of what the README prints, in its order.
EXAMPLES = {
    "plan": ["plan", "--params", "5B", "--gpus", "16", "--hw", "dgx-a100-40gb"],
    "estimate": ["estimate", "--params", "10B", "--gpus", "16"],
    # The demo's run, the beginning of it.
    "train": ["train", "--model", "examples/byte_gpt/config.json", "--config", "examples/byte_gpt/ds_config.json",
              "--backend", "cpu", "--gpus", "2", "--data", "LICENSE", "--steps", "4", "--validate-every", "2"],
}
# What else may come out ugly: one choice, one GPU, long names, nothing that fits, other units.
OTHERS = {
    "one-choice": ["estimate", "--model", "gpt2-10b", "--hw", "dgx-2", "--gpus", "1", "--config",
                   os.path.join(ROOT, "examples/10b_on_one_32gb_gpu/ds_config.json")],
    "many": ["estimate", "--model", "gpt2-xl", "--gpus", "8", "--checkpointing", "all", "--tokens", "1B",
             "--gpu-hour-price", "2.5"],
    "machines": ["plan", "llama3.1-8b", "--hw", "dgx-b200,dgx-b300,dgx-h100,8xh100,l40s,p5-48xlarge,a3-highgpu-8g",
                 "--gpus", "8,64", "--tokens", "100B", "--deadline", "72h", "--budget", "20000", "--objective", "cost"],
    "machines-of-no-run": ["plan", "gpt2-xl", "--hw", "rtx4090,l40s,4090+3090", "--gpus", "1,2,4,8"],
    "nothing-fits": ["estimate", "--params", "500B", "--gpus", "1"],
    "one-gpu": ["plan", "--model", "gpt2", "--gpus", "1", "--quick"],
    "data": ["plan", "--model", "examples/byte_gpt/config.json", "--gpus", "1", "--quick", "--packing", "documents",
             "--epochs", "2", "--gpu-hour-price", "2.5", "--data", "README.md", "CHANGELOG.md",
             "LICENSE", "docs/planning.md"],
}


WIDTHS = (1280, 400)
MOST_ROWS = 6  # of a table, in an outline
MOST_BYTES = 150_000  # of a screenshot


# What must be found wrong with a page that has one of each, so that nothing else is found for want of looking.
FAULTS = {
    "runs out of the picture": '<text class="t" x="-90" y="20">left of it</text>',
    "lies over": '<text class="t" x="150" y="100">one text</text><text class="t" x="160" y="103">another</text>',
    "the capacity line crosses": '<line class="limit" x1="300" y1="20" x2="300" y2="60"></line>'
                                 '<text class="t" x="290" y="46">words on it</text>',
    "px high": '<text class="t" x="10" y="50" style="font-size: 8px">small print</text>',
    "px wide, the window": '</svg><div style="width: 2000px">wide</div><svg width="1" height="1" aria-label="">',
    "is cut off": '</svg><p style="width: 60px; white-space: nowrap; overflow: hidden">longer than sixty pixels</p>'
                  '<svg width="1" height="1" aria-label="">',
    "CONSOLE": "</svg><script>console.error('noise')</script><svg width='1' height='1' aria-label=''>",
}


class Outline(html.parser.HTMLParser):
    """The pictures of a page, and of their tables the heads and how the first rows begin."""

    def __init__(self):
        super().__init__()
        self.lines, self.row, self.cell, self.wide, self.head = [], None, None, False, False

    def handle_starttag(self, tag, attributes):
        has = dict(attributes)
        if tag == "section":
            self.lines.append(f"{has['id']}")
        elif tag == "div" and has.get("class") in ("wide", "narrow"):
            self.wide = has["class"] == "wide"
        elif tag == "svg" and self.wide:
            self.lines.append(f"  picture: {has['aria-label']}")
        elif tag == "tr":
            self.row = []
        elif tag in ("th", "td"):
            self.cell = ""

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.row.append(self.cell)
            self.cell, self.head = None, tag == "th"
        elif tag == "tr":
            section = self.section()
            if not any(line.startswith("  heads") for line in section):
                self.lines.append("  heads: " + " | ".join(self.row))
            elif not self.head and sum(line.startswith("  row") for line in section) < MOST_ROWS:
                self.lines.append("  row: " + self.row[0])

    def section(self):
        return self.lines[max(i for i, line in enumerate(self.lines) if not line.startswith(" ")):]


def outline_of(page):
    parser = Outline()
    parser.feed(page)
    return "\n".join(parser.lines) + "\n"


def chromium(program, arguments, profile):
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               "--allow-file-access-from-files", "--enable-logging=stderr", "--force-device-scale-factor=1",
               f"--user-data-dir={profile}"] + arguments
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


def frame(folder, frames, height, zoom=1):
    """A page that shows pages in windows of their widths: Chromium's own is never narrower than 500 pixels."""
    path = os.path.join(folder, "frame.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write("<!doctype html><body style='margin:0'><script>const all = {};"
                   "addEventListener('message', e => { const one = JSON.parse(e.data); all[one.page] = one;"
                   "document.body.dataset.result = JSON.stringify(all); })</script>")
        for page, width in frames:
            file.write(f"<iframe src='{page}' style='border:0;width:{width}px;height:{height}px;"
                       f"transform:scale({zoom});transform-origin:0 0'></iframe>")
    return "file://" + path


def measured(folder, name, width, page):
    """Writes the page with the script that looks at it; its file's name."""
    with open(os.path.join(HERE, "measure.js"), encoding="utf-8") as file:
        script = file.read()
    # The page's own policy would not run it.
    page, found = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    assert found == 1, f"{name}: no policy"
    file_name = f"{name}-{width}.measured.html"
    with open(os.path.join(folder, file_name), "w", encoding="utf-8") as file:
        file.write(page.replace("</body>", f"<script>{script}</script></body>"))
    return file_name


def look(program, folder, pages, dark, profile):
    """What is wrong with each page at each width, and the colours of each."""
    frames = {measured(folder, name, width, page): (name, width)
              for name, page in pages.items() for width in WIDTHS}
    arguments = ["--window-size=1300,900", "--virtual-time-budget=20000", "--dump-dom"]
    if dark:
        arguments.append("--blink-settings=preferredColorScheme=0")
    shown = frame(folder, [(file, width) for file, (_, width) in frames.items()], 900)
    dom, console = chromium(program, arguments + [shown], profile)
    found = re.search(r'data-result="([^"]*)"', dom)
    results = json.loads(html.unescape(found.group(1))) if found else {}
    faults, colours = {}, {}
    for file, (name, width) in frames.items():
        result = results.get(file)
        if result is None:
            faults[name, width] = ["no answer from the page"]
            continue
        wrong = result["faults"] + [line for line in console if file in line]
        if result["width"] != width:
            wrong.append(f"laid out at {result['width']} pixels")
        if result["dark"] != dark:
            wrong.append(f"dark is {result['dark']}")
        if result["texts"] < 20 or result["pictures"] < 1:
            wrong.append(f"only {result['texts']} texts and {result['pictures']} pictures are shown")
        faults[name, width] = wrong
        colours[name] = result["colours"]
    return faults, colours, [line for line in console if not any(file in line for file in frames)]


def shoot(program, folder, name, shots, profile):
    for width, dark, height in ((1280, False, 1500), (400, True, 1500)):
        target = os.path.join(os.path.abspath(shots), f"report-{name}-{width}.png")
        arguments = [f"--window-size={max(width, 500)},{height}", f"--screenshot={target}"]
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        # As large as Chromium's window is at least.
        chromium(program, arguments + [frame(folder, [(name + ".html", width)], height, max(1, 500 / width))],
                 profile)
        if shutil.which("pngquant"):
            subprocess.run(["pngquant", "--force", "--ext", ".png", "--strip", "64", target], check=True)
        if os.path.getsize(target) > MOST_BYTES:
            sys.exit(f"{target} is larger than {MOST_BYTES} bytes; apt-get install pngquant")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--shots")
    parser.add_argument("--run")
    parser.add_argument("--write-outline", action="store_true")
    options = parser.parse_args()
    program = shutil.which(options.chromium)
    outline_file = os.path.join(HERE, "outline.txt")
    failed = opened = 0
    with tempfile.TemporaryDirectory(prefix="zeroplan_pages_") as folder:
        pages, outline = {}, ""
        environment = dict(os.environ, ZEROPLAN_NO_DETECT="1")
        for name, arguments in {**EXAMPLES, **OTHERS}.items():
            path = os.path.join(folder, name + ".html")
            done = subprocess.run([os.path.join(options.build, "zeroplan"), *arguments, "--report", path],
                                  cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"zeroplan {' '.join(arguments)}: {done.returncode}\n{done.stderr}")
            with open(path, encoding="utf-8") as file:
                pages[name] = file.read()
            if name in EXAMPLES:
                outline += f"== {name}: zeroplan {' '.join(arguments)}\n{outline_of(pages[name])}"
        if options.write_outline:
            with open(outline_file, "w", encoding="utf-8") as file:
                file.write(outline)
        with open(outline_file, encoding="utf-8") as file:
            expected = file.read()
        if outline != expected:
            failed += 1
            print("The pages of the README's examples no longer have the pictures and rows of outline.txt; "
                  "look at them, then --write-outline and --shots:")
            for now, then in zip(outline.splitlines(), expected.splitlines()):
                if now != then:
                    print(f"  now:  {now}\n  then: {then}")
                    break
            else:
                print("  one of them ends earlier")
        if program is None:
            if failed:
                sys.exit(1)
            print(f"skipped: there is no {options.chromium} to open pages with (apt-get install chromium)")
            sys.exit(77)
        profile = os.path.join(folder, "profile")
        pages["faulty"] = pages["plan"].replace("</svg>", "".join(FAULTS.values()) + "</svg>", 1)
        light = look(program, folder, pages, False, profile)
        dark = look(program, folder, pages, True, profile)
        for faults, _, console in (light, dark):
            for (name, width), wrong in faults.items():
                opened += 1
                if name == "faulty":
                    missed = [fault for fault in FAULTS if not any(fault in found for found in wrong)]
                    # What stands in the wide picture is not shown on a phone.
                    wrong = [f"not found: {fault}" for fault in missed] if width == WIDTHS[0] else []
                failed += 1 if wrong else 0
                if wrong:
                    print(f"{name} at {width} pixels{', dark' if faults is dark[0] else ''}:")
                for fault in wrong[:20]:
                    print(f"  {fault}")
            if console:
                failed += 1
                print("the console is not empty:", *console, sep="\n  ")
        for name in pages:
            if light[1].get(name) == dark[1].get(name):
                failed += 1
                print(f"{name}: light and dark have the same colours")
        if options.shots:
            if options.run:
                shutil.copy(options.run, os.path.join(folder, "train.html"))
            for name in EXAMPLES:
                shoot(program, folder, name, options.shots, profile)
    print(f"{opened - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
