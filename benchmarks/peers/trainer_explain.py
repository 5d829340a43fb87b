"""What a step of trainer_runs.py holds at its peak and what its GPU time goes to.

The first step after those timed is recorded by the caching allocator, the second by the profiler.
"""
import collections
import gc

MIB = 2**20
SHOWN = 1 * MIB
# Frames that only call the next one.
PASSED_ON = ("torch/nn/modules/module.py", "torch/utils/_contextlib", "torch/amp/autocast_mode",
             "accelerate/utils/operations")


def stack_words(frames):
    """The frames that tell a block's origin: autograd's node, then Python's, innermost first."""
    words, seen = [], 0
    for frame in frames:
        name, file = frame["name"], frame["filename"]
        if "Backward" in name and "::apply" in name and not words:
            words.append("<" + name.split("::apply")[0].split("::")[-1] + ">")
        if file.endswith(".py") and "torch/_ops" not in file and "trainer_runs" not in file:
            short = "/".join(file.split("/")[-2:])
            if not any(x in file for x in PASSED_ON):
                words.append(f"{short}:{frame['line']} {name}")
                seen += 1
        if seen == 3:
            break
    return " < ".join(words) or "(no frame)"


def origin(frames):
    return stack_words(frames) if frames else "(no frame)"


class Explainer:
    def __init__(self, torch, path):
        self.torch, self.path = torch, path
        self.marks, self.hooks = [], []
        self.recording = self.profile = None
        path.write_text("")

    def write(self, *lines):
        with open(self.path, "a") as out:
            out.write("\n".join(lines) + "\n")

    def step_ended(self, after, run):
        if after == 0:
            self.header(run)
            self.watch(run)
            self.start_memory(run)
        elif after == 1:
            self.end_memory()
            self.start_profile()
        elif after == 2:
            self.end_profile()
            for hook in self.hooks:
                hook.remove()

    def header(self, run):
        shown = {k: v for k, v in vars(run.row).items() if v not in (None, {}, [], False)}
        self.write(f"{run.row.name}: {shown}", f"figures: {run.figures}", "")

    def watch(self, run):
        model = run.trainer.accelerator.unwrap_model(run.trainer.model)
        self.hooks = [model.register_forward_pre_hook(lambda *_: self.mark("backward")),
                      model.register_forward_hook(lambda *_: self.mark("forward"))]

    def mark(self, ended):
        """Ends a part of the step; the one before the first forward is of no part."""
        if self.recording is None and self.profile is None:
            return
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        now, peak = self.torch.cuda.memory_allocated(), self.torch.cuda.max_memory_allocated()
        self.marks.append((ended, event, now, peak))
        self.torch.cuda.reset_peak_memory_stats()

    # Memory

    def start_memory(self, run):
        torch = self.torch
        torch.cuda.synchronize()
        self.labels = self.label_tensors(run)
        self.live = {}
        for segment in torch.cuda.memory_snapshot():
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    self.live[block["address"]] = (block["size"], self.label(block))
        self.start_bytes = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="all")
        self.recording = True

    def label_tensors(self, run):
        """By address of its storage: what a tensor that Python holds is."""
        torch, labels = self.torch, {}

        def note(tensor, word):
            if torch.is_tensor(tensor) and tensor.is_cuda and tensor.numel():
                try:
                    address = tensor.untyped_storage().data_ptr()
                except Exception:
                    return
                kind = str(tensor.dtype)[6:]
                labels.setdefault(address, f"{word} {kind}{list(tensor.shape)}")

        for name, parameter in run.trainer.model.named_parameters():
            short = ".".join("*" if x.isdigit() else x for x in name.split("."))
            note(parameter, f"parameter {short}")
            note(parameter.grad, f"gradient {short}")
        optimizer = getattr(run.trainer.optimizer, "optimizer", run.trainer.optimizer)
        state = getattr(optimizer, "state", {})
        if isinstance(state, dict):
            for entry in state.values():
                for key, tensor in (entry.items() if isinstance(entry, dict) else ()):
                    note(tensor, f"optimizer {key}")
        for thing in gc.get_objects():
            try:
                if isinstance(thing, torch.Tensor):
                    note(thing, "tensor")
            except Exception:
                pass
        return labels

    def label(self, block):
        inside = [w for a, w in self.labels.items()
                  if block["address"] <= a < block["address"] + block["size"]]
        return "before the step: " + (inside[0] if inside else "(not held by Python)")

    def end_memory(self):
        torch = self.torch
        torch.cuda.synchronize()
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        live, now = dict(self.live), sum(size for size, _ in self.live.values())
        events = [e for e in snapshot["device_traces"][0]
                  if e["action"] in ("alloc", "free_requested")]
        best, at = now, -1
        for index, event in enumerate(events):
            now = self.replay(live, now, event)
            if now > best:
                best, at = now, index
        live, now = dict(self.live), sum(size for size, _ in self.live.values())
        for event in events[:at + 1]:
            now = self.replay(live, now, event)
        self.report_memory(live, best, at, events)
        self.report_parts("MiB allocated at the end of each part, and the peak in it",
                          lambda mark, _: f"{mark[2] / MIB:10.1f}   peak {mark[3] / MIB:10.1f}")
        self.recording = None

    def replay(self, live, now, event):
        if event["action"] == "alloc":
            live[event["addr"]] = (event["size"], origin(event.get("frames")))
            return now + event["size"]
        return now - live.pop(event["addr"], (0, ""))[0]

    def report_memory(self, live, best, at, events):
        groups = collections.Counter()
        counts = collections.Counter()
        small = 0
        for size, word in live.values():
            if size < SHOWN:
                small += size
                continue
            groups[(size, word)] += size
            counts[(size, word)] += 1
        self.write(f"== Blocks alive at the allocated peak of one step: {best / MIB:.1f} MiB "
                   f"(before it {self.start_bytes / MIB:.1f}; the peak is event {at} of "
                   f"{len(events)})")
        if at >= 0:
            self.write(f"   the peak's own block: {events[at]['size'] / MIB:.2f} MiB "
                       f"{origin(events[at].get('frames'))}")
        self.write(f"{'total MiB':>10} {'count':>5} {'each MiB':>10}  origin")
        for (size, word), total in groups.most_common(120):
            self.write(f"{total / MIB:10.2f} {counts[(size, word)]:5d} {size / MIB:10.3f}  {word}")
        self.write(f"{small / MIB:10.2f}     blocks under 1 MiB", "")

    def report_parts(self, title, words):
        self.write("== " + title)
        for index, mark in enumerate(self.marks):
            self.write(f"{mark[0]:>10}  {words(mark, index)}")
        self.write("")
        self.marks.clear()

    # Time

    def start_profile(self):
        torch = self.torch
        torch.cuda.synchronize()
        kinds = torch.profiler.ProfilerActivity
        self.profile = torch.profiler.profile(activities=[kinds.CUDA, kinds.CPU])
        self.profile.start()
        torch.cuda.synchronize()
        self.mark("start")

    def end_profile(self):
        torch = self.torch
        self.mark("end")
        torch.cuda.synchronize()
        self.profile.stop()
        kernels = [e for e in self.profile.events()
                   if str(e.device_type).endswith("CUDA")
                   and not getattr(e, "is_user_annotation", False)]
        spans = sorted((e.time_range.start, e.time_range.end) for e in kernels)
        busy, reached = 0.0, 0.0
        for begin, end in spans:
            busy += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        total, count = collections.Counter(), collections.Counter()
        for event in kernels:
            total[event.name] += event.time_range.end - event.time_range.start
            count[event.name] += 1
        wall = self.marks[0][1].elapsed_time(self.marks[-1][1])
        self.write(f"== GPU of one step under the profiler: busy {busy / 1e3:.2f} ms of "
                   f"{wall:.2f} ms, {len(kernels)} kernels and copies",
                   f"{'ms':>9} {'count':>6} {'us each':>9}  name")
        for name, us in total.most_common(70):
            self.write(f"{us / 1e3:9.3f} {count[name]:6d} {us / count[name]:9.1f}  {name[:170]}")
        self.write("")
        marks = list(self.marks)
        self.report_parts("GPU ms of each part (under the profiler)", lambda mark, i:
                          f"{marks[i - 1][1].elapsed_time(mark[1]) if i else 0:9.2f}")
        self.profile = None
