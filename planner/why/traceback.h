// Frames of Python's tracebacks, as printed by Python, IPython and rich, and the facts that they
// imply.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/why/run_log.h"

namespace zeroplan {

struct PythonFrame {
  std::string file, function;
  int64_t line = 0;  // 0: unknown
};

// The frames in one line of a log. Ranks that write concurrently may put several in one.
std::vector<PythonFrame> FramesIn(std::string_view line);
// rich breaks frames that are too long for its box. BrokenFrameFile: the file in a line whose
// function is on the next line, "" for other lines. BrokenFrame: the frame with that next line.
std::string BrokenFrameFile(std::string_view line);
std::optional<PythonFrame> BrokenFrame(std::string_view line, std::string file);
// "trainer.py:2772 training_step".
std::string FrameText(const PythonFrame& frame);
// Whether a function of that name only calls what it wraps ("_call_impl").
bool OnlyCallsOn(std::string_view function);
// The phase of a run with these frames, the outermost first. `codes`: the source lines among them.
RunPhase PhaseOfFrames(const std::vector<PythonFrame>& frames,
                       const std::vector<std::string>& codes);
// Whether the frames run checkpointed layers again in a backward pass.
bool Recomputes(const std::vector<PythonFrame>& frames);

// The operation that makes a list of tensors one by one, if the last frames or source lines name
// one: "torch._foreach_sqrt", "flatten_dense_tensors"; "": none.
std::string ListOperation(const std::vector<PythonFrame>& frames,
                          const std::vector<std::string>& codes);
// Whether a Trainer's training step reaches the model's own code without a frame of DDP, FSDP,
// DeepSpeed or accelerate's hooks.
bool ForwardWithoutWrapper(const std::vector<PythonFrame>& frames);

// The value of a field that frames of a file imply.
struct FrameFact {
  std::string_view path;      // a part of the file's path
  std::string_view function;  // empty: any
  std::string_view field, text;
};
std::vector<const FrameFact*> FactsOf(const PythonFrame& frame);

}  // namespace zeroplan
