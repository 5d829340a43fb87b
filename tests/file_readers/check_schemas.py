#!/usr/bin/env python3
"""`zeroplan config schema` beside the readers, on the fixtures.

    python3 tests/file_readers/check_schemas.py build/release/zeroplan .

Every config, profile, plan and line of metrics among the examples and the fuzzers' seeds that the reader
takes must validate, and none that it refuses for a key, type or range may. For the latter each file that
is taken is spoilt in every section: a key that nobody knows, a value of another type, a number out of its
range. A spoilt file that the reader takes all the same (a value that has no effect, or is not read) says
nothing and is left out. Configs are read with --strict. Exit code 1 where the two differ; 77 where the
package jsonschema is missing.
"""
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

SKIP = 77
try:
    import jsonschema
except ImportError as missing:
    print(f"skipped: {missing} (python3 -m pip install jsonschema)")
    sys.exit(SKIP)

SPOILT = (("another type", lambda value: {"no": "thing"} if not isinstance(value, dict) else 17),
          ("below any range", lambda value: -7 if isinstance(value, (int, float)) else None))


class Checker:
    def __init__(self, zeroplan, kind, command, work):
        self.zeroplan, self.command = zeroplan, command
        self.file = work / "spoilt.json"
        schema = json.loads(subprocess.run([zeroplan, "config", "schema", kind], check=True,
                                           capture_output=True, text=True).stdout)
        jsonschema.Draft202012Validator.check_schema(schema)
        self.validator = jsonschema.Draft202012Validator(schema)

    def taken(self, content):
        self.file.write_text(json.dumps(content))
        run = subprocess.run([self.zeroplan, *self.command, self.file], capture_output=True, text=True)
        assert run.returncode in (0, 2), run.stderr
        return run.returncode == 0, run.stderr

    def valid(self, content):
        return next(self.validator.iter_errors(content), None)


def sections(node, path=()):
    """Paths of all objects in it."""
    if isinstance(node, dict):
        yield path
        for key, value in node.items():
            yield from sections(value, path + (key,))


def at(node, path):
    for key in path:
        node = node[key]
    return node


def spoilt(content, skip):
    for path in sections(content):
        if path and path[0] in skip:
            continue
        wrong = copy.deepcopy(content)
        at(wrong, path)["no_such_key_anywhere"] = 1
        yield f"unknown key in {'.'.join(path) or 'the top level'}", wrong
        for key, value in at(content, path).items():
            if not path and key in skip:
                continue
            for what, change in SPOILT:
                new = change(value)
                if new is None:
                    continue
                wrong = copy.deepcopy(content)
                at(wrong, path)[key] = new
                yield f"{'.'.join(path + (key,))}: {what}", wrong


def check_files(checker, files, name, skip=()):
    taken = refused = 0
    differ = []
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8-sig"))
        except ValueError:
            continue  # Hjson, or broken on purpose
        ok, _ = checker.taken(content)
        if not ok:
            continue
        taken += 1
        error = checker.valid(content)
        if error is not None:
            differ.append(f"{file}: taken, and not valid: {str(error)[:300]}")
        if not isinstance(content, dict):
            continue
        # Each spoilt file is a run of the program: of the first few files.
        for what, wrong in spoilt(content, skip) if taken <= name[1] else ():
            ok, said = checker.taken(wrong)
            if ok:
                continue
            refused += 1
            if checker.valid(wrong) is None:
                differ.append(f"{file}: {what}: valid, and refused: {said}")
    assert not differ, "\n".join(differ)
    assert taken > 0 and refused > 0, (name, taken, refused)
    print(f"{name[0]}: {taken} files are valid, {refused} spoilt ones are not")


def check_metrics(zeroplan, source, work):
    checker = Checker(zeroplan, "metrics", [], work)
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32,
              "vocab_size": 256}
    (work / "config.json").write_text(json.dumps(config))
    subprocess.run([zeroplan, "train", "--model", work / "config.json", "--data", source / "LICENSE",
                    "--threads", "1", "--backend", "cpu", "--steps", "6", "--validate-every", "3",
                    "--save", work / "out", "--metrics", work / "m.jsonl"], check=True,
                   stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (work / "m.jsonl").read_text().splitlines()]
    assert {line["event"] for line in lines} == {"start", "step", "validation", "saved", "end"}
    for line in lines:
        error = checker.valid(line)
        assert error is None, error
        for key in line:
            wrong = {k: v for k, v in line.items() if k != key}
            assert checker.valid(wrong) is not None, f"valid without {key}"
            assert checker.valid({**line, key: [1]}) is not None, f"valid with a list as {key}"
        assert checker.valid({**line, "more": 1}) is not None
    print(f"metrics: {len(lines)} lines are valid, and none of them spoilt")


def main():
    zeroplan, source = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    corpus = source / "tests/fuzz/corpus"
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        configs = sorted((corpus / "config").iterdir()) + sorted(source.glob("examples/*/*ds_config.json"))
        check_files(Checker(zeroplan, "config", ["config", "check", "--strict"], work), configs,
                    ("config", 5))
        profiles = sorted((source / "hwprofiles/profiles").glob("*.json"))
        check_files(Checker(zeroplan, "profile", ["hw", "show"], work), profiles, ("profile", 1))
        # A plan is more than its keys, of which its program's fingerprint tells: a spoilt one that is
        # refused for that is no matter of its schema. Its config is checked above.
        subprocess.run([zeroplan, "plan", "--model", "gpt2", "--gpus", "2", "--seq-len", "256", "--hw",
                        "dgx-h100", "--plan-out", work / "plan.json"], check=True, capture_output=True)
        check_files(Checker(zeroplan, "plan", ["explain"], work), [work / "plan.json"], ("plan", 1),
                    skip=("config", "fingerprint", "predicted", "zeroplan", "model"))
        check_metrics(zeroplan, source, work)


if __name__ == "__main__":
    main()
