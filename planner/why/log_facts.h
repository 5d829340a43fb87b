// What a log says of fields: options on command lines and in printed arguments, headers of Trainer
// and accelerate, configs that DeepSpeed and transformers print.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "planner/why/run_log.h"

namespace zeroplan {

// How much a source is worth: frames of a traceback, what follows from several figures, what is
// said outright, what the engine prints of itself.
inline constexpr int kFromFrames = 1, kFollows = 2, kStated = 3, kFromEngine = 4;

class FactReader {
 public:
  explicit FactReader(RunLog* log) : log_(log) {}

  // A line without control sequences, with whatever stands before its text.
  void Line(const std::string& line, int64_t number);
  // What follows from several facts.
  void Finish();
  void Add(std::string_view field, std::string text, int64_t line, std::string from, int strength);
  void Program(std::string_view name);

 private:
  // Lines that go on what an earlier one began.
  enum class Block : uint8_t { kNone, kJson, kArguments, kYaml };

  bool InBlock(const std::string& line, int64_t number);
  void BeginJson(const std::string& line, int64_t number, bool model, size_t brace);
  void EndJson();
  void Options(const std::string& line, int64_t number);
  // `name` as programs have it: "per_device_train_batch_size". False: not known.
  bool Option(std::string_view name, const std::string& value, int64_t line, std::string from,
              int strength);
  // Of an option that is known, a value that is not.
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
  // kJson: what is read so far, the text in front of each line, open braces.
  std::string json_, json_prefix_;
  int depth_ = 0;
  bool json_of_model_ = false;
  int64_t json_line_ = 0, block_lines_ = 0;
  std::string yaml_parent_;
  // Of Trainer's header and of launchers; 0: not said.
  int64_t total_batch_ = 0, total_batch_line_ = 0, per_node_ = 0, nodes_ = 0, launch_line_ = 0;
  int64_t device_batch_ = 0;
  bool evaluates_ = false;            // within the header of an evaluation or a prediction
  bool header_since_config_ = false;  // Trainer's, behind the config that is held
  int64_t no_bf16_line_ = 0, no_fp16_line_ = 0;  // where they are said to be off; 0: nowhere
};

}  // namespace zeroplan
