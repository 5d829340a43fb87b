// Frames of Python's tracebacks, as Python, IPython and rich print them, and what they tell.
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
  int64_t line = 0;  // 0: not told
};

// The frames in one line of a log. Where ranks write at once there may be several.
std::vector<PythonFrame> FramesIn(std::string_view line);
// rich breaks frames that are too long for its box: the file of a line whose function stands on the
// next one, "" for others; and that next line's frame.
std::string BrokenFrameFile(std::string_view line);
std::optional<PythonFrame> BrokenFrame(std::string_view line, std::string file);
// "trainer.py:2772 training_step".
std::string FrameText(const PythonFrame& frame);
// Where a run is whose frames, the outermost first, are these. `codes`: the lines of source among
// them.
RunPhase PhaseOfFrames(const std::vector<PythonFrame>& frames,
                       const std::vector<std::string>& codes);
// Whether checkpointed layers run again in a backward pass.
bool Recomputes(const std::vector<PythonFrame>& frames);

// What frames of such a file tell of a field.
struct FrameFact {
  std::string_view path;      // a part of the file's path
  std::string_view function;  // empty: any
  std::string_view field, text;
};
std::vector<const FrameFact*> FactsOf(const PythonFrame& frame);

}  // namespace zeroplan
