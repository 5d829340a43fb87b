"""The installed package as people use it: results beside the program's JSON, messages, pandas, pickles,
threads, speed. Run by run.sh; needs nothing but the package, and pandas in a folder (--pandas)."""

import argparse
import concurrent.futures
import copy
import dataclasses
import doctest
import html
import inspect
import json
import os
import pickle
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import zeroplan
from zeroplan import _core

PROGRAM = os.path.join(os.path.dirname(sys.executable), "zeroplan")
ASKED = {"model": "gpt2-xl", "gpus": 4, "hw": "dgx-a100-40gb", "gpu_memory": "16GB"}
SMALL = {"model": "gpt2", "gpus": 2, "hw": "dgx-a100-40gb", "stage": [1, 2], "quick": True}
pandas_folder = ""


def run(command, options):
    """The program, asked the same. Returns its exit code, stdout and stderr."""
    words = [PROGRAM, command]
    for name, value in options.items():
        words.append("--" + name.replace("_", "-"))
        if name == "data":
            words.extend(value)
        elif value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, list) else str(value))
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def reported(command, options):
    """The page that the program writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "page.html")
        code, _, err = run(command, {**options, "report": file})
        assert code == 0, err
        with open(file, encoding="utf-8") as stream:
            return stream.read()


COMMAND = re.compile(r'<pre id="command">(.*?)</pre>', re.DOTALL)


def printed(command, options):
    code, out, err = run(command, {**options, "format": "json"})
    assert code == 0, err
    return json.loads(out)


class Package(unittest.TestCase):
    maxDiff = None

    def same(self, result, source, where=""):
        """Every key of the JSON is a field of the result, of the same value."""
        for key, value in source.items():
            field = getattr(result, key)
            path = f"{where}.{key}"
            if dataclasses.is_dataclass(field) and not isinstance(field, type):
                self.same(field, value, path)
            elif isinstance(value, list):
                self.assertEqual(len(field), len(value), path)
                for i, (one, other) in enumerate(zip(field, value)):
                    if isinstance(other, dict):
                        self.same(one, other, f"{path}[{i}]")
                    else:
                        self.assertEqual(one, other, f"{path}[{i}]")
            else:
                self.assertEqual(field, value, path)

    def test_estimate_is_the_programs(self):
        options = {**ASKED, "tokens": "1B", "gpu_hour_price": 2.5, "interruptions": "0.1/h", "notice": "30s"}
        estimate = zeroplan.estimate(**options)
        source = printed("estimate", options)
        self.assertEqual(estimate.to_dict(), source)
        del source["schema"]
        self.same(estimate, source)
        self.assertGreater(len(estimate.fitting()), 0)
        self.assertLess(len(estimate.fitting()), len(estimate.choices))
        self.assertIn("--micro-batch 1", estimate.assumed)

    def test_the_example_of_the_readme_prints_what_it_says(self):
        readme = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
        ran = doctest.testfile(readme, module_relative=False, encoding="utf-8")
        self.assertEqual(ran.failed, 0)
        self.assertGreater(ran.attempted, 0)

    def test_plan_is_the_programs(self):
        plan = zeroplan.plan(**ASKED)
        source = printed("plan", ASKED)
        ours = plan.to_dict()
        for clock in (ours, source):
            del clock["search"]["seconds"]
        self.assertEqual(ours, source)
        claims, stages = source.pop("claims"), source["stages"]
        del source["schema"], source["zeroplan"]
        self.same(plan, source)
        self.assertGreater(len(claims), 0)
        for claim, other in zip(plan.claims, claims):
            self.assertEqual(claim.kind, other["kind"])
            self.same(claim.change, {**other["change"]})
            self.assertEqual(claim.gap, other["gap"])
            if other["answer"] is None:
                self.assertIsNone(claim.answer)
            else:
                self.assertEqual(claim.tokens_per_second, other["answer"].pop("tokens_per_second"))
                self.same(claim.answer, other["answer"])
        self.assertEqual([s["choice"] for s in stages if s["fits"]].count(dataclasses.asdict(plan.choice)), 1)
        self.assertEqual(plan.tokens_per_second, source["predicted"]["tokens_per_second"])
        self.assertEqual(plan.deepspeed_config(), source["config"])

    def test_saved_plan_is_read_by_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "plan.json")
            zeroplan.plan(**SMALL).save(file)
            done = subprocess.run([PROGRAM, "explain", file], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_errors_are_the_programs(self):
        for command, options in [
            ("plan", {}),
            ("plan", {"model": "gpt2-xxl"}),
            ("estimate", {"model": "gpt2", "gpus": 0}),
            ("estimate", {"model": "gpt2", "gpu_memory": "lots"}),
            ("plan", {"model": "gpt2", "hw": "dgx-a100-41gb"}),
            ("plan", {"model": "gpt2", "hw": "dgx-a100-40gb", "config": "no_such.json"}),
            ("plan", {"params": "175B", "hw": "dgx-a100-40gb", "gpus": 1, "stage": 0}),
        ]:
            # A screen has the closest stage alone.
            code, _, said = run(command, {**options, "explain": True} if command == "plan" else options)
            with self.subTest(said), self.assertRaises(ValueError) as caught:
                getattr(zeroplan, command)(**options)
            self.assertEqual(f"zeroplan: {caught.exception}\n", said)
            self.assertEqual(caught.exception.exit_code, code)
            kind = zeroplan.NothingFits if code == 3 else zeroplan.Error
            self.assertIs(type(caught.exception), kind)
            back = pickle.loads(pickle.dumps(caught.exception))
            self.assertEqual((str(back), back.exit_code), (str(caught.exception), code))
        with self.assertRaises(TypeError):
            zeroplan.plan(modle="gpt2")
        for wrong in (("gpt2", 8), ("gpt2",)):
            with self.assertRaises(TypeError):
                zeroplan.estimate(*wrong, model="gpt2", hw="dgx-h100")
        named = zeroplan.estimate(model="gpt2", hw="dgx-h100", gpus=2, stage=1)
        self.assertEqual(zeroplan.estimate("gpt2", hw="dgx-h100", gpus=2, stage=1).to_json(), named.to_json())
        with self.assertRaises(TypeError):
            zeroplan.plan(model=object())

    def test_arguments_are_the_options(self):
        for function, options in [
            (zeroplan.estimate, _core.estimate_options()),
            (zeroplan.plan, _core.plan_options()),
            (zeroplan.why, [["--log", "FILE", ""], *_core.why_options()]),
        ]:
            names = [name[2:].replace("-", "_") for name, _, _ in options]
            self.assertEqual(list(inspect.signature(function).parameters), names)
            for _, _, help in options:
                self.assertIn(help, function.__doc__)

    def test_machines_are_the_programs(self):
        asked = {"model": "gpt2", "gpus": [1, 8], "hw": ["t4", "l40s"]}
        compared = zeroplan.machines(**asked)
        program = printed("plan", asked)
        self.assertEqual(compared.to_dict(), program)
        self.assertEqual([m.hw for m in compared.machines], [m["hw"] for m in program["machines"]])
        self.assertIs(compared.best, compared.machines[0])
        self.assertTrue(all(m.unbeaten for m in compared.unbeaten))
        self.assertEqual(compared.machines[0].choice.gpus, 8)
        self.assertIn("l40s", compared._repr_html_())
        self.assertIn("Price against time", compared.report())
        with self.assertRaisesRegex(zeroplan.Error, "name one machine"):
            zeroplan.plan(**asked)
        with self.assertRaisesRegex(TypeError, "sequence_length"):
            zeroplan.machines(model="gpt2", sequence_length=3)

    def test_why_is_the_programs(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "train.log")
            with open(log, "w") as file:
                file.write("python train.py --model_name_or_path gpt2 --per_device_train_batch_size 4\n"
                           "Num processes: 1\n"
                           "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.00 GiB "
                           "total capacity; 21.00 GiB already allocated; 1.00 GiB free; 21.50 GiB reserved "
                           "in total by PyTorch)\n")
            why = zeroplan.why(log)
            self.assertEqual([one["field"] for one in why.missing], ["runtime", "seq_len"])
            self.assertIsNone(why.prediction)
            self.assertIn("--seq-len", why.incomplete)
            self.assertEqual(why.failure["kind"], "gpu_memory")
            why = zeroplan.why(log, runtime="ddp", seq_len=512)
            done = subprocess.run([PROGRAM, "why", log, "--runtime", "ddp", "--seq-len", "512", "--format", "json"],
                                  capture_output=True, text=True)
            self.assertEqual(why.to_json(), done.stdout)
            self.assertEqual(why.incomplete, "")
            self.assertTrue(why.findings)
            self.assertIn("ran out of GPU memory", str(why))
            with self.assertRaises(zeroplan.Error):
                zeroplan.why(os.path.join(folder, "none.log"))

    def test_values_may_be_numbers_lists_and_paths(self):
        import pathlib

        words = dict(zeroplan._words({"params": 10e9, "stage": [2, 3], "offload_ratio": 0.25,
                                      "offload_param": ("none", "cpu"), "quick": True, "gpus": None,
                                      "deterministic": False, "config": pathlib.Path("a/b.json")}))
        self.assertEqual(words, {"params": "10000000000", "stage": "2,3", "offload-ratio": "0.25",
                                 "offload-param": "none,cpu", "quick": "true", "config": "a/b.json"})

    def test_pandas(self):
        estimate = zeroplan.estimate(model="gpt2", hw="dgx-a100-40gb", gpus=2)
        plan = zeroplan.plan(**SMALL)
        # The module is only looked for here: the environment has none.
        self.assertNotIn("pandas", sys.modules)
        with self.assertRaisesRegex(ImportError, "pip install pandas"):
            estimate.to_pandas()
        sys.path.append(pandas_folder)
        try:
            frame = estimate.to_pandas()
            stages = plan.to_pandas()
        finally:
            sys.path.remove(pandas_folder)
        _, csv, _ = run("estimate", {"model": "gpt2", "hw": "dgx-a100-40gb", "gpus": 2, "format": "csv"})
        self.assertEqual(",".join(frame.columns), csv.splitlines()[0])
        self.assertEqual(len(frame), len(estimate.choices))
        totals = [choice.gpu_bytes.total for choice in estimate.choices]
        self.assertEqual(list(frame["gpu_bytes.total"]), totals)
        self.assertEqual(list(stages["stage"]), [1, 2])

    def test_report_is_the_programs(self):
        for command, options in [("estimate", {**ASKED, "tokens": "1B"}), ("plan", ASKED), ("plan", SMALL)]:
            result = getattr(zeroplan, command)(**options)
            page, other = result.report(), reported(command, options)
            self.assertEqual(COMMAND.sub("", page), COMMAND.sub("", other))
            self.assertGreaterEqual(page.count("<svg"), 6)
            call = html.unescape(COMMAND.search(page).group(1))
            self.assertTrue(call.startswith(f"zeroplan.{command}(model="), call)
            self.assertEqual(eval(call).report(), page)
            for outside in ("http:", "https:", "src=", "url(", "@import", "<link", "<script"):
                self.assertNotIn(outside, page)
            with tempfile.TemporaryDirectory() as folder:
                file = os.path.join(folder, "page.html")
                result.save_report(file)
                with open(file, encoding="utf-8") as stream:
                    self.assertEqual(stream.read(), page)

    def test_report_of_copies_and_pickles(self):
        for result in (zeroplan.estimate(model="gpt2", hw="dgx-a100-40gb"), zeroplan.plan(**SMALL)):
            page = result.report()
            with concurrent.futures.ThreadPoolExecutor(4) as threads:
                self.assertEqual(set(threads.map(lambda _: result.report(), range(8))), {page})
            self.assertEqual(copy.copy(result).report(), page)
            self.assertEqual(copy.deepcopy(result).report(), page)
            self.assertFalse([key for key in dataclasses.asdict(result) if "draw" in key])
            for other in (pickle.loads(pickle.dumps(result)), dataclasses.replace(result)):
                self.assertEqual(other, result)
                self.assertNotIn("<iframe", other._repr_html_())
                for asked in (other.report, lambda: other.save_report("/no/such/folder/page.html")):
                    with self.assertRaisesRegex(zeroplan.Error, r"pickle.*ask zeroplan\.\w+\(\) again"):
                        asked()
            copied = copy.copy(result)
            del result
            self.assertEqual(copied.report(), page)

    def test_frames_of_a_notebook(self):
        for result in (zeroplan.estimate(model="gpt2", hw="dgx-a100-40gb"), zeroplan.plan(**SMALL)):
            text = result._repr_html_()
            frames = re.findall(r'<iframe [^>]*? srcdoc="([^"]*)"></iframe>', text)
            self.assertEqual(len(frames), 1)
            # What is outside of the frame changes nothing of the notebook, and nothing in the frame
            # runs or is fetched.
            outside = re.sub(r"(?s)<iframe .*</iframe>", "", text)
            self.assertIsNone(re.search(r"<style|<script|\bid=", outside))
            frame = html.unescape(frames[0])
            for one in ("http:", "https:", "src=", "url(", "@import", "<link", "<script"):
                self.assertNotIn(one, frame)
            page = result.report()
            pictures = re.findall(r'aria-label="([^"]*)"', frame)
            self.assertGreater(len(pictures), 2)
            self.assertEqual(pictures, re.findall(r'class="narrow"><svg[^>]*? aria-label="([^"]*)"', page))
            self.assertEqual(re.findall(r'<section id="[^"]*">', frame), re.findall(r'<section id="[^"]*">', page))
            # A table that is folded has its headings once more.
            self.assertEqual(re.findall(r"<td[ >].*", frame), re.findall(r"<td[ >].*", page))
            self.assertEqual(set(re.findall(r"<th[ >].*", frame)), set(re.findall(r"<th[ >].*", page)))

    def test_pictures_of_a_notebook(self):
        for result in (zeroplan.estimate(model="gpt2", hw="dgx-a100-40gb"), zeroplan.plan(**SMALL)):
            text = result._repr_html_()
            self.assertTrue(text.startswith("<table>"))
            rows = result.choices if hasattr(result, "choices") else result.stages
            self.assertEqual(text.count("<tr>"), len(rows) + 1)
            for row in rows:
                self.assertIn(f"{row.gpu_bytes.total / 1e9:.2f}", text)

    def test_pickle_copy_and_equality(self):
        for result in (zeroplan.estimate(model="gpt2", hw="dgx-a100-40gb"), zeroplan.plan(**SMALL)):
            self.assertEqual(pickle.loads(pickle.dumps(result)), result)
            self.assertEqual(copy.deepcopy(result), result)
            self.assertIn("gpu_bytes=GpuBytes(", repr(result))

    def test_other_threads_run_meanwhile(self):
        ticks = 0
        done = threading.Event()

        def tick():
            nonlocal ticks
            while not done.wait(0.001):
                ticks += 1

        thread = threading.Thread(target=tick)
        thread.start()
        try:
            # With the lock held there would be none in a call but before and behind. A busy machine may give the
            # other thread no turn in one call.
            most = 0
            for _ in range(100):
                ticks = 0
                zeroplan.plan(model="gpt3-6.7b", gpus=16, hw="dgx-a100-40gb", quick=True)
                most = max(most, ticks)
                if most > 10:
                    break
        finally:
            done.set()
            thread.join()
        self.assertGreater(most, 10)

    def test_ctrl_c_ends_a_search(self):
        asks = ("import zeroplan; print('asking', flush=True); zeroplan.plan(model='llama3.1-405b', "
                "gpus=512, hw='hgx-h200', effort=1000)")
        child = subprocess.Popen([sys.executable, "-c", asks], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        try:
            self.assertEqual(child.stdout.readline(), "asking\n")
            time.sleep(0.5)
            child.send_signal(signal.SIGINT)
            _, said = child.communicate()
        finally:
            child.kill()
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual(child.returncode, -signal.SIGINT)

    def test_interruptions(self):
        plan = zeroplan.plan(**ASKED, quick=True, interruptions="1/6h", tokens="1B")
        self.assertAlmostEqual(plan.interruptions.rate_per_hour, 1 / 6)
        self.assertGreater(plan.interruptions.interval_steps, 0)
        self.assertGreater(plan.interruptions.expected_seconds, plan.training.seconds)
        self.assertIsNone(plan.interruptions.fits_notice)
        self.same(plan.interruptions, plan.to_dict()["interruptions"])
        self.assertIsNone(zeroplan.plan(**ASKED, quick=True).interruptions)

    def test_largest_and_goal(self):
        plan = zeroplan.plan(model="gpt2", hw="dgx-a100-40gb", quick=True, largest="seq-len", tokens=10**9)
        self.assertIn("--seq-len 1024", plan.largest)
        self.assertEqual(plan.training.tokens, 10**9)
        self.assertIsNone(plan.training.price)

    def test_data_is_the_programs(self):
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "config.json")
            with open(config, "w", encoding="utf-8") as stream:
                json.dump({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2,
                           "n_positions": 128, "vocab_size": 256}, stream)  # bytes are its tokens
            texts = [os.path.join(folder, f"{i}, and more.txt") for i in range(40)]
            for i, text in enumerate(texts):
                with open(text, "w", encoding="utf-8") as stream:
                    stream.write("0123456789" * (2 + i % 15))
            asked = {"model": config, "hw": "dgx-h100", "gpus": 1, "micro_batch": 2, "grad_accum": 1, "stage": 0,
                     "data": texts, "epochs": 2.5, "packing": "documents", "gpu_hour_price": 2.0}
            estimate, plan = zeroplan.estimate(**asked), zeroplan.plan(**asked, quick=True)
            for result in (estimate, plan):
                self.same(result.data, result.to_dict()["data"])
                self.assertEqual(result.data, plan.data)
                self.assertIn("Data: 40 documents, ", result._repr_html_())
                self.assertIn('id="data"', result.report())
                self.assertEqual(pickle.loads(pickle.dumps(result)).data, plan.data)
            self.assertEqual(printed("estimate", asked), estimate.to_dict())
            self.assertEqual(plan.data.documents, 40)
            self.assertEqual(plan.data.document_tokens.longest, 160)
            self.assertLess(plan.data.packed.sequences, plan.data.one_a_sequence.sequences)
            self.assertEqual(plan.training.steps, plan.data.steps)
            self.assertGreater(plan.training.price, 0)
            machines = zeroplan.machines(**{**asked, "hw": ["dgx-h100", "rtx4090"], "gpu_hour_price": None})
            self.assertIsNone(machines.tokens)
            self.assertGreater(machines.best.seconds, 0)
            self.same(machines.best.data, machines.to_dict()["machines"][0]["data"])
            with self.assertRaises(zeroplan.Error) as raised:
                zeroplan.plan(**{**asked, "tokens": "1B"})
            self.assertIn("--tokens: 1B is not allowed with --data", str(raised.exception))
        self.assertIsNone(zeroplan.plan(**SMALL).data)
        self.assertIsNone(zeroplan.estimate(**ASKED).data)

    def test_typed(self):
        folder = os.path.dirname(zeroplan.__file__)
        self.assertTrue(os.path.exists(os.path.join(folder, "py.typed")))
        self.assertTrue(os.path.exists(os.path.join(folder, "_core.pyi")))
        # ZEROPLAN_WRITE_GENERATED: the source tree's file, which is written.
        stub, written = zeroplan._options._stub(zeroplan), os.environ.get("ZEROPLAN_WRITE_GENERATED")
        compile(stub, "__init__.pyi", "exec")
        if written:
            with open(written, "w", encoding="utf-8") as stream:
                stream.write(stub)
        with open(written or os.path.join(folder, "__init__.pyi"), encoding="utf-8") as stream:
            self.assertEqual(stream.read(), stub, "python/zeroplan/__init__.pyi is not of the present options")
        self.assertEqual(zeroplan.__version__, zeroplan._core.version())

    def test_program_trains_on_the_cpu(self):
        with tempfile.TemporaryDirectory() as folder:
            text, config = os.path.join(folder, "text.txt"), os.path.join(folder, "config.json")
            metrics = os.path.join(folder, "metrics.jsonl")
            with open(text, "w", encoding="utf-8") as stream:
                stream.write("To train is to repeat with small changes. " * 400)
            with open(config, "w", encoding="utf-8") as stream:
                json.dump({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2,
                           "n_positions": 32, "vocab_size": 256}, stream)
            words = ["train", "--model", config, "--data", text, "--backend", "cpu", "--threads", "1",
                     "--steps", "3", "--metrics", metrics]
            done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(metrics, encoding="utf-8") as stream:
                events = [json.loads(line) for line in stream]
            self.assertEqual([e["step"] for e in events if e["event"] == "step"], [1, 2, 3])


class Timing(unittest.TestCase):
    """What measures time, run by itself (ctest --preset timing)."""

    def test_no_slower_than_the_program(self):
        ours, programs = [], []
        for _ in range(9):
            start = time.perf_counter()
            zeroplan.plan(**SMALL)
            middle = time.perf_counter()
            run("plan", {**SMALL, "format": "json"})
            ours.append(middle - start)
            programs.append(time.perf_counter() - middle)
        print(f"a plan: {statistics.median(ours) * 1e3:.1f} ms here, "
              f"{statistics.median(programs) * 1e3:.1f} ms by the program")
        self.assertLessEqual(statistics.median(ours), statistics.median(programs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pandas", required=True)
    known, others = parser.parse_known_args()
    pandas_folder = known.pandas
    unittest.main(argv=[sys.argv[0], *others])
