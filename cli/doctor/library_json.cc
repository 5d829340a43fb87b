#include "cli/doctor/library_json.h"

#include <nlohmann/json.hpp>

namespace zeroplan {
namespace {

// One list of the fields, for both ways.
template <typename Facts, typename Field>
void ForEachField(Facts& facts, Field field) {
  field("version", facts.version);
  field("cuda", facts.cuda);
  field("architectures", facts.architectures);
  field("runtime", facts.runtime);
  field("driver", facts.driver);
  field("gpus", facts.gpus);
  field("failure", facts.failure);
  field("why", facts.why);
  field("nccl", facts.nccl);
  field("nccl_at_build", facts.nccl_at_build);
  field("cudnn", facts.cudnn);
  field("cudnn_at_build", facts.cudnn_at_build);
  field("why_no_cudnn", facts.why_no_cudnn);
}

}  // namespace

std::string LibrariesAsJson(const LibraryFacts& facts) {
  nlohmann::ordered_json json;
  ForEachField(facts, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::optional<LibraryFacts> LibrariesFromJson(const std::string& output) {
  const size_t end = output.find_last_not_of(" \r\n");
  if (end == std::string::npos) return std::nullopt;
  const size_t begin = output.find_last_of('\n', end);
  try {
    const auto json = nlohmann::json::parse(
        output.substr(begin == std::string::npos ? 0 : begin + 1, end - begin));
    LibraryFacts facts;
    ForEachField(facts, [&](const char* name, auto& value) { json.at(name).get_to(value); });
    return facts;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace zeroplan
