// The keys of a config that came in which go out again beside those that were written.
#pragma once

#include <string>
#include <string_view>

#include "core/base/json_source.h"

namespace zeroplan {

// `written`, a DeepSpeed config as strict JSON, with every key of `incoming` that it does not have:
// other sections, comments, keys that nobody knows, settings that have no effect here. Where both
// have a key, `written` decides. Keys that would contradict it are left out: "auto" in the sections
// and keys that the reader reads (it was for zeroplan to choose), other and deprecated names of
// keys that `written` has. Whether whole weights are gathered when a model is saved stays as
// `incoming` says it: no plan decides that.
std::string KeepOtherKeys(std::string_view written, const JsonNode& incoming);

// Whether a config says a value at the dotted `key`: it is there, not null and not "auto".
bool ConfigSays(const JsonNode& config, std::string_view key);

// `config`, strict JSON, with what it is for under "_zeroplan", which programs other than zeroplan
// ignore: {"runtime": "deepspeed 0.19.6"}, and "compile" (what of the model runs under
// torch.compile: "layers" or "all") unless that is empty.
std::string NameRuntime(std::string_view config, std::string_view runtime,
                        std::string_view compile);

}  // namespace zeroplan
