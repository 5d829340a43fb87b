// Finds values of fields in a log: options on command lines and in printed arguments, headers of
// Trainer and accelerate, configs that DeepSpeed and transformers print.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "planner/why/run_log.h"

namespace zeroplan {

// The strength of a source: the name of a config file, frames of a traceback, conclusions from
// several figures, direct statements, output of the engine about itself.
inline constexpr int kByName = 1, kFromFrames = 2, kFollows = 3, kStated = 4, kFromEngine = 5;

class FactReader {
 public:
  explicit FactReader(RunLog* log) : log_(log) {}

  // Reads a line without control sequences, including any prefix before its text.
  void Line(const std::string& line, int64_t number);
  // Draws the conclusions from several facts.
  void Finish();
  void Add(std::string_view field, std::string text, int64_t line, std::string from, int strength);
  void Program(std::string_view name);
  // Notes the task of the run (run_tasks.h); "": no task. The first one counts.
  void Task(std::string_view task);

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
  // Variables of the environment before a command: NPROC_PER_NODE=2.
  void Variable(const std::string& word, int64_t line);
  // Words of a file's name that tell a stage, offload or adapters: "ds_z3_offload_config.json".
  void FileName(std::string_view file, int64_t line);
  void Fsdp(const std::string& value, int64_t line);
  void AccelerateLine(std::string_view line, int64_t number);
  void TrainerHeader(const std::string& line, int64_t number);
  void Headers(const std::string& line, int64_t number);
  void DeepSpeedLine(const std::string& line, int64_t number);
  void YamlLine(const std::string& name, const std::string& value, bool nested, int64_t line);

  // Lines of programs with headers of their own (log_programs.cc).
  void Torchtitan(const std::string& line, int64_t number);
  void Megatron(const std::string& line, int64_t number);
  void MegatronArgument(std::string_view name, const std::string& value, int64_t number);
  void Unsloth(const std::string& line, int64_t number);
  void TorchtuneModel(std::string_view component, int64_t number);
  // An adapted linear by torchtune's name.
  void TorchtuneTarget(std::string_view linear, int64_t number);
  // The positive whole number after `key`, if the line has it, as the engine's word for `field`.
  void Count(std::string_view line, std::string_view key, std::string_view field, int64_t number);
  void NotPredictedBecause(std::string why, std::string_view unless);

  RunLog* log_;
  Block block_ = Block::kNone;
  // kJson: the text read so far, the prefix of each line, open braces.
  std::string json_, json_prefix_;
  int depth_ = 0;
  bool json_of_model_ = false;
  int64_t json_line_ = 0, block_lines_ = 0;
  std::string yaml_parent_, yaml_list_;
  // From Trainer's header and launchers; 0: not found.
  int64_t total_batch_ = 0, total_batch_line_ = 0, per_node_ = 0, nodes_ = 0, launch_line_ = 0;
  int64_t device_batch_ = 0;
  bool evaluates_ = false;            // within the header of an evaluation or a prediction
  bool header_since_config_ = false;  // Trainer's header came after the stored config
  int64_t no_bf16_line_ = 0, no_fp16_line_ = 0;  // lines that turn them off; 0: none
};

}  // namespace zeroplan
