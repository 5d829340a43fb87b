// A checkpoint's meta.json, which describes it.
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
  // Checksums of the file's entries in the order of their data, one for each chunk
  // (shard_writer.h).
  std::vector<uint64_t> checksums;
};

// The run's validations: the best one and the number since.
struct ValidationRecord {
  std::string data;         // the validation data; losses on other data are not comparable
  int64_t step = 0;         // step of the last validation
  int64_t best_step = 0;    // step of the lowest loss
  double best_loss = 0;     // finite
  int64_t worse = 0;        // validations since the best one, or since the start
  bool any_finite = false;  // false: best_step and best_loss are meaningless
};

// The key in `run` of the choice that the run was lowered from, as in the metrics.
inline constexpr const char* kChoiceFact = "choice";

struct CheckpointMeta {
  // The trainer fills in the following.
  int64_t step = 0;               // optimizer steps taken
  uint64_t samples_consumed = 0;  // position in the training order, see batch_sampler.h
  uint64_t seed = 0;              // the seed of that order
  int world_size = 1;             // ranks of the run that saved; any number may resume
  StepState state;                // stored bit by bit
  ModelSpec model;
  uint64_t train_tokens = 0;  // tokens from the begin of the data that are trained on; the rest is
                              // held back. 0: none is held back
  std::map<std::string, std::string> run;      // the facts that decide the run's numbers
                                               // (run_identity.h)
  std::optional<ValidationRecord> validation;  // absent: there was no validation

  // True: make `best` name this checkpoint. Not written to meta.json.
  bool is_best = false;

  // The writer fills in the following.
  uint64_t serial = 0;  // counts saves into the same folder; a larger one is newer, whatever the
                        // step
  std::vector<CheckpointFile> files;
};

// The text of meta.json, sealed (SealJson).
std::string FormatCheckpointMeta(const CheckpointMeta& meta);
// Appends a key to a JSON object: a digest of all the text before it, which reveals any changed
// byte.
std::string SealJson(std::string_view object);
// Reads FOLDER/meta.json. Throws Error(kUsage) that names file and key if a value is missing or
// malformed, and if the text is not the one that was sealed.
CheckpointMeta ReadCheckpointMeta(const std::filesystem::path& folder);

// Throws Error(kUsage) that names `source`, the first dimension in which the models differ, and the
// fix. Names and initialisation may differ.
void CheckSameShape(const ModelSpec& saved, const ModelSpec& wanted, std::string_view source);

// Sixteen hexadecimal digits that tell texts apart (64-bit FNV-1a; against mistakes, not malice).
std::string DigestText(std::string_view text);

}  // namespace zeroplan
