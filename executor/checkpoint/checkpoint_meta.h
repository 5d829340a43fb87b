// What a checkpoint says about itself: its meta.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_spec.h"
#include "core/program/step_state.h"

namespace zeroplan {

inline constexpr std::string_view kCheckpointSchema = "zeroplan.checkpoint/2";

struct CheckpointFile {
  std::string name;          // "rank-0000.safetensors"
  uint64_t bytes = 0;        // size of the file
  uint64_t header_hash = 0;  // SafetensorsFile::header_hash
  // Checksums of its entries in the order of their data, one for each chunk (shard_writer.h).
  std::vector<uint64_t> checksums;
};

// The run's validations: what "best" means, and how long ago it was.
struct ValidationRecord {
  std::string data;         // what was validated with; losses on other data do not compare
  int64_t step = 0;         // of the last one
  int64_t best_step = 0;    // of the lowest loss
  double best_loss = 0;     // finite
  int64_t worse = 0;        // validations since that one, or since the start
  bool any_finite = false;  // else best_step and best_loss mean nothing
};

// The name in `run` of what the run was lowered from, as the metrics have it.
inline constexpr const char* kChoiceFact = "choice";

struct CheckpointMeta {
  // What the trainer fills in.
  int64_t step = 0;               // optimizer steps taken
  uint64_t samples_consumed = 0;  // position in the training order, see batch_sampler.h
  uint64_t seed = 0;              // of that order
  int world_size = 1;             // ranks of the run that saved; any number may resume
  StepState state;                // kept bit by bit
  ModelSpec model;
  uint64_t train_tokens = 0;  // of the data, from its begin; the others are held back. 0: none are
  std::map<std::string, std::string> run;      // what decides its numbers (run_identity.h)
  std::optional<ValidationRecord> validation;  // absent: there was none

  // `best` is to name this checkpoint. Not written.
  bool is_best = false;

  // What the writer fills in.
  uint64_t serial = 0;  // counts saves into the same folder: larger is newer, whatever the step
  std::vector<CheckpointFile> files;
};

// The text of meta.json, sealed.
std::string FormatCheckpointMeta(const CheckpointMeta& meta);
// A JSON object with one more key at its end: a digest of all the text before it, so that a changed
// byte anywhere shows.
std::string SealJson(std::string_view object);
// Reads FOLDER/meta.json. Throws Error(kUsage) naming file and key for what is missing or
// malformed, and for a text that is not the one that was sealed.
CheckpointMeta ReadCheckpointMeta(const std::filesystem::path& folder);

// Throws Error(kUsage) naming `source` and the first dimension in which the models differ, with the
// fix. Names and initialisation may differ.
void CheckSameShape(const ModelSpec& saved, const ModelSpec& wanted, std::string_view source);

// Sixteen hexadecimal digits that tell texts apart (64-bit FNV-1a; against mistakes, not malice).
std::string DigestText(std::string_view text);

}  // namespace zeroplan
