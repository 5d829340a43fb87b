// Which checkpoint --resume takes: the one that `latest` names, or, where that is damaged, the
// newest intact one.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/process/process_group.h"

namespace zeroplan {

struct ResumeChoice {
  std::unique_ptr<CheckpointSource> source;  // null: the folder holds no checkpoint
  // Names of the folders that were passed over, for CommitCheckpoint.
  std::vector<std::string> damaged;
};

// Called by all ranks; all take the same one. Its shards' data is held against the checksums first,
// each rank reading a part of the files, so that no run starts from what it cannot load: that costs
// one read of the checkpoint, shared by the ranks.
//
// A checkpoint that is passed over is a warning that says what is wrong and how many steps are
// trained again; it stays as it is. `strict`: it is an error. Throws Error(kUsage) if none is
// intact, if the model is another one, and on a rank that cannot see the folder; Error(kRuntime)
// where files cannot be looked at for a reason that is not theirs.
ResumeChoice ChooseCheckpoint(ProcessGroup& group, const std::filesystem::path& save_dir,
                              const ModelSpec& spec, std::span<const ParamTensor> table,
                              bool strict);

}  // namespace zeroplan
