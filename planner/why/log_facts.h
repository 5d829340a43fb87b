// Finds values of fields in a log: options on command lines and in printed arguments, headers of
// Trainer and accelerate, configs that DeepSpeed and transformers print.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "planner/why/run_log.h"

namespace zeroplan {

// The strength of a source: frames of a traceback, conclusions from several figures, direct
// statements, output of the engine about itself.
inline constexpr int kFromFrames = 1, kFollows = 2, kStated = 3, kFromEngine = 4;

class FactReader {
 public:
  explicit FactReader(RunLog* log) : log_(log) {}

  // Reads a line without control sequences, including any prefix before its text.
  void Line(const std::string& line, int64_t number);
  // Draws the conclusions from several facts.
  void Finish();
  void Add(std::string_view field, std::string text, int64_t line, std::string from, int strength);
  void Program(std::string_view name);

 private:
  // Blocks whose lines continue what an earlier line began.
  enum class Block : uint8_t { kNone, kJson, kArguments, kYaml };

  bool InBlock(const std::string& line, int64_t number);
  void BeginJson(const std::string& line, int64_t number, bool model, size_t brace);
  void EndJson();
  void Options(const std::string& line, int64_t number);
  // `name` in the program's spelling: "per_device_train_batch_size". False: unknown.
  bool Option(std::string_view name, const std::string& value, int64_t line, std::string from,
              int strength);
  // Notes an unknown value of a known option.
  void NoteUnknown(std::string_view name, std::string_view field, const std::string& value,
                   int64_t line, const std::string& from);
  void Launch(std::string_view name, const std::string& value, int64_t line);
  void Fsdp(const std::string& value, int64_t line);
  void AccelerateLine(std::string_view line, int64_t number);
  void TrainerHeader(const std::string& line, int64_t number);
  void Headers(const std::string& line, int64_t number);
  void DeepSpeedLine(const std::string& line, int64_t number);

  RunLog* log_;
  Block block_ = Block::kNone;
  // kJson: the text read so far, the prefix of each line, open braces.
  std::string json_, json_prefix_;
  int depth_ = 0;
  bool json_of_model_ = false;
  int64_t json_line_ = 0, block_lines_ = 0;
  std::string yaml_parent_;
  // From Trainer's header and launchers; 0: not found.
  int64_t total_batch_ = 0, total_batch_line_ = 0, per_node_ = 0, nodes_ = 0, launch_line_ = 0;
  int64_t device_batch_ = 0;
  bool evaluates_ = false;            // within the header of an evaluation or a prediction
  bool header_since_config_ = false;  // Trainer's header came after the stored config
  int64_t no_bf16_line_ = 0, no_fp16_line_ = 0;  // lines that turn them off; 0: none
};

}  // namespace zeroplan
