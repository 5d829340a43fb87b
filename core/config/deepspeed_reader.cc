#include "core/config/deepspeed_reader.h"

#include <algorithm>

#include "core/config/config_description.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/reader_state.h"
#include "core/config/setup_facts.h"

namespace zeroplan {
namespace {

// Real configs have some tens of values. What is looked up or compared for each of them stays
// cheap below this.
constexpr size_t kMaxValues = 10'000;

size_t CountValues(const JsonNode& node) {
  size_t count = 1;
  for (const JsonMember& member : node.members) count += CountValues(member.value);
  for (const JsonNode& element : node.elements) count += CountValues(element);
  return count;
}

// False where it is open.
bool HasGradAccumKey(const JsonNode& root) {
  const JsonNode* types = root.Find("data_types");
  if (types == nullptr || !types->is_object()) return false;
  const JsonNode* key = types->Find("grad_accum_dtype");
  return key != nullptr && !key->is_null() && !(key->is_string() && key->scalar == "auto");
}

void ReadSections(ReaderState* state) {
  ReadBatch(state);
  ReadPrecision(state);
  ReadZero(state);
  ReadCommunication(state);
  ReadOptimizer(state);
  ReadScheduler(state);
  ReadRecompute(state);
  ReadOtherKeys(state);
}

}  // namespace

std::vector<ConfigSection> DescribeConfig(std::string_view config) {
  const JsonNode root = ParseJsonText(config, "config");
  const ReadContext context;
  ReaderState state(root, "config", context);
  ReadSections(&state);
  std::vector<ConfigSection> sections;
  for (const JsonSection& section : state.sections()) {
    sections.push_back({section.path(), section.keys()});
  }
  return sections;
}

ReadResult ReadDeepSpeedConfig(std::string_view text, std::string_view source,
                               const ReadContext& context) {
  const JsonNode root = ParseJsonText(text, source);
  if (const size_t count = CountValues(root); count > kMaxValues) {
    ThrowUsage("{}: has {} values; this is no DeepSpeed config (at most {})", source, count,
               kMaxValues);
  }
  ReaderState state(root, source, context);
  ReadSections(&state);
  state.CheckUnknownKeys();
  // With a value missing, what else looks wrong may only follow from that.
  if (!state.HasProblems()) {
    if (const std::optional<SetupProblem> problem = FindSetupProblem(state.result.setup)) {
      const auto& of_option = context.grad_accum_dtype;
      if (problem->key == kGradAccumKey && of_option && !HasGradAccumKey(root)) {
        state.AddProblem(0, fmt::format("@@grad_accum_dtype: {}", problem->message));
      } else {
        state.ReportAt(problem->key, problem->message);
      }
    }
  }
  if (state.HasProblems()) state.ThrowProblems();
  // An open total_num_steps is filled in before DeepSpeed sees it.
  TrainSetup filled = state.result.setup;
  filled.optimizer.schedule.total_steps =
      std::max<int64_t>(1, filled.optimizer.schedule.total_steps);
  if (const std::string cannot = DeepSpeedCannot(filled); !cannot.empty()) {
    state.result.warnings.push_back(
        fmt::format("{}: zeroplan runs this, DeepSpeed itself does not: {}", source, cannot));
  }
  return std::move(state.result);
}

ReadResult ReadDeepSpeedConfigFile(const std::filesystem::path& file, const ReadContext& context) {
  return ReadDeepSpeedConfig(ReadTextFile(file), file.string(), context);
}

}  // namespace zeroplan
