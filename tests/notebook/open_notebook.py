"""Runs examples/notebook/plan.ipynb, compares what its cells show with what is stored in it, and opens it in
headless Chromium, light and dark: frames of pictures are as high as what they show, have the notebook's
colours, and no text in them is cut off, too small or over another one. Run by run.sh.

    open_notebook.py SOURCE [CHROMIUM] [--write] [--shots docs/pictures]

--write stores what the cells show now, pictures apart, which are large; --shots takes the screenshot of
docs/python.md. Without Chromium the notebook is run and compared alone.
"""
import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import nbclient
import nbconvert
import nbformat

FRAME = re.compile(r'<iframe [^>]*? srcdoc="([^"]*)"></iframe>')
# Looks at each frame after the notebook has made it fit.
LOOK = """<script>addEventListener('load', () => setTimeout(() => {
  const frames = [...document.querySelectorAll('iframe')].map((frame) => {
    const page = frame.contentDocument;
    return {theme: page.documentElement.className, height: frame.clientHeight,
            content: page.body.offsetHeight, wide: page.documentElement.scrollWidth - frame.clientWidth};
  });
  document.body.dataset.frames = JSON.stringify(frames);
}, 1000))</script>"""


def join_prints(notebook):
    """What a cell prints comes in as many pieces as time makes of it."""
    for cell in notebook.cells:
        joined = []
        for output in cell.get("outputs", []):
            if joined and output.output_type == joined[-1].output_type == "stream" and output.name == joined[-1].name:
                joined[-1].text += output.text
            else:
                joined.append(output)
        if cell.cell_type == "code":
            cell.outputs = joined


def texts(notebook):
    """What each cell shows, without frames."""
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown.append(output.text if output.output_type == "stream" else FRAME.sub("", output.data["text/html"]))
    return shown


def stored(notebook):
    """The notebook as it is kept: no frames, no times, nothing of this machine's Python."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                         "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "data" in output:
                output["data"] = {"text/html": FRAME.sub("", output["data"]["text/html"])}
    return nbformat.writes(notebook) + "\n"


def converted(notebook, theme):
    exporter = nbconvert.HTMLExporter(theme=theme, mathjax_url="", require_js_url="", jquery_url="",
                                      widget_renderer_url="")
    return exporter.from_notebook_node(notebook)[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("chromium", nargs="?", default="chromium")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--shots")
    options = parser.parse_args()
    source = os.path.abspath(options.source)
    sys.path.append(os.path.join(source, "tests", "report_pages"))
    import open_pages

    file = os.path.join(source, "examples", "notebook", "plan.ipynb")
    notebook = nbformat.read(file, as_version=4)
    then = texts(notebook)
    faults = []
    with tempfile.TemporaryDirectory(prefix="zeroplan_notebook_") as folder:
        # What a cell raises is raised here.
        nbclient.NotebookClient(notebook, kernel_name="python3",
                                resources={"metadata": {"path": folder}}).execute()
        join_prints(notebook)
        for written in ("plan.json", "plan.html"):
            if not os.path.exists(os.path.join(folder, written)):
                faults.append(f"no cell has written {written}")
        now = texts(notebook)
        frames = [html.unescape(frame) for cell in notebook.cells for output in cell.get("outputs", [])
                  for frame in FRAME.findall(output.get("data", {}).get("text/html", ""))]
        if len(frames) != 2:
            faults.append(f"{len(frames)} frames of pictures, not 2")
        pages = {theme: converted(notebook, theme) for theme in ("light", "dark")}
        if options.write:
            with open(file, "w", encoding="utf-8") as stream:
                stream.write(stored(notebook))
            then = now
        if now != then:
            faults.append("cells no longer show what is stored in the notebook; look at it, then --write")
            faults += [f"now:  {a}\n  then: {b}" for a, b in zip(now, then) if a != b][:1]
        program = shutil.which(options.chromium)
        if program is None:
            print(f"there is no {options.chromium} to look at the notebook with (apt-get install chromium)")
        else:
            profile = os.path.join(folder, "profile")
            for theme, page in pages.items():
                path = os.path.join(folder, f"notebook-{theme}.html")
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(page.replace("</body>", LOOK + "</body>"))
                # The reader's system asks for the other one: the frame is to be as the notebook is.
                system = [] if theme == "dark" else ["--blink-settings=preferredColorScheme=0"]
                dom, console = open_pages.chromium(
                    program, ["--window-size=1280,900", "--virtual-time-budget=20000", "--dump-dom", *system,
                              "file://" + path], profile)
                found = re.search(r'data-frames="([^"]*)"', dom)
                looked = json.loads(html.unescape(found.group(1))) if found else []
                faults += console
                if len(looked) != len(frames):
                    faults.append(f"{theme}: {len(looked)} frames are shown")
                for one in looked:
                    if (one["theme"] != theme or one["height"] != one["content"] or one["height"] < 300
                            or one["wide"] > 0):
                        faults.append(f"a frame in a {theme} notebook: {one}")
                if options.shots and theme == "light":
                    target = os.path.join(os.path.abspath(options.shots), "notebook-plan-1280.png")
                    open_pages.chromium(program, ["--window-size=1280,1960", "--virtual-time-budget=20000",
                                                  f"--screenshot={target}", "file://" + path], profile)
                    if shutil.which("pngquant"):
                        subprocess.run(["pngquant", "--force", "--ext", ".png", "--strip", "64", target], check=True)
            for dark in (False, True):
                wrong, _, console = open_pages.look(
                    program, folder, {f"frame{i}": frame for i, frame in enumerate(frames)}, dark, profile)
                faults += console
                faults += [f"{name} at {width} pixels: {fault}" for (name, width), found in wrong.items()
                           for fault in found]
    for fault in faults[:20]:
        print(fault)
    print(f"{0 if faults else 1} passed, {1 if faults else 0} failed")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
