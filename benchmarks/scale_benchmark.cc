// Published runs on one to 280 nodes beside what is predicted for them, by framework, GPU and
// nodes.
//
//   scale_benchmark [--rows]
//
// Predicts every row of tests/data/scale/published_scale_runs.jsonl, and the runs of FSDP in
// tests/fixtures/published_runs.txt that have a sibling on another number of nodes, with the
// runtime that made them: FSDP2's and DeepSpeed's models, zeroplan's own executor for others. Other
// executors' kernels are slower than zeroplan's, so beside the ratio (predicted tokens/s over
// measured) stands what it is over that of the smallest run of the same work: what the number of
// nodes adds to the error.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "cost_models/cost_model.h"
#include "cost_models/step_time.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"

namespace zeroplan {
namespace {

struct Run {
  std::string id, framework, runtime, machine, network, recompute, dtype;
  std::string work;  // runs of the same work differ in GPUs alone, or in micro-steps to match
  ModelSpec model;
  int gpus = 1, stage = 0;
  int64_t seq = 0, micro_batch = 1, grad_accum = 1;
  bool fp32_reduction = false, held = false;
  double measured = 0, predicted = 0;  // tokens/s of a GPU

  double ratio() const { return predicted / measured; }
};

ModelSpec ModelOf(const std::string& family, int64_t layers, int64_t hidden, int64_t heads,
                  int64_t kv_heads, int64_t ffn, int64_t vocab, int64_t seq) {
  ModelSpec model = LoadModel(family == "gpt2" ? "gpt2" : "llama3.1-8b");
  model.layers = layers;
  model.hidden = hidden;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.ffn = ffn;
  model.vocab = vocab;
  model.padded_vocab = (vocab + 127) / 128 * 128;
  model.positions = seq;
  return model;
}

std::vector<Run> ReadScaleRuns(const std::string& folder) {
  std::ifstream in(folder + "/tests/data/scale/published_scale_runs.jsonl");
  ZEROPLAN_CHECK(in.good(), "no published_scale_runs.jsonl in {}", folder);
  std::vector<Run> runs;
  std::string line;
  std::getline(in, line);  // what the file holds
  while (std::getline(in, line)) {
    const auto json = nlohmann::json::parse(line);
    Run& run = runs.emplace_back();
    run.id = json.at("id");
    run.framework = json.at("framework");
    run.runtime = json.at("runtime");
    run.machine = json.at("machine");
    run.network = json.at("network");
    run.recompute = json.at("recompute");
    run.dtype = json.at("dtype");
    run.gpus = json.at("gpus");
    run.stage = json.at("stage");
    run.seq = json.at("seq");
    run.micro_batch = json.at("micro_batch");
    run.grad_accum = json.at("grad_accum");
    run.held = json.at("held");
    run.measured = json.at("tokens_per_second");
    run.model = ModelOf(json.at("family"), json.at("layers"), json.at("hidden"), json.at("heads"),
                        json.at("kv_heads"), json.at("ffn"), json.at("vocab"), run.seq);
    // NeMo's runs share a batch over more GPUs; a step's rest is little beside 8 micro-steps.
    const int64_t batch = run.framework == "NeMo Megatron" ? 0 : run.micro_batch * run.grad_accum;
    run.work = fmt::format("{} {} {} {} {}", run.framework, run.model.hidden, run.stage,
                           run.recompute, batch);
  }
  return runs;
}

std::vector<Run> ReadFsdpRuns(const std::string& folder) {
  std::ifstream in(folder + "/tests/fixtures/published_runs.txt");
  ZEROPLAN_CHECK(in.good(), "no published_runs.txt in {}", folder);
  std::vector<Run> runs;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("mpt-") && !line.starts_with("mgpt-")) continue;
    Run run;
    std::string offload, style;
    int64_t layers = 0, hidden = 0, heads = 0, vocab = 0;
    std::istringstream words(line);
    words >> run.id >> run.machine >> run.gpus >> run.stage >> offload >> run.recompute >> layers >>
        hidden >> heads >> vocab >> run.seq >> run.micro_batch >> run.grad_accum >> style >>
        run.measured;
    ZEROPLAN_CHECK(words, "{}", line);
    run.framework = "Composer, FSDP";
    run.runtime = "fsdp2";
    run.dtype = "bf16";
    run.fp32_reduction = run.id.find("amp_bf16") != std::string::npos;
    run.held = run.gpus >= 256;
    run.model = ModelOf("gpt2", layers, hidden, heads, heads, 4 * hidden, vocab, run.seq);
    run.work = fmt::format("{} {} {} {} {}", run.id.substr(0, run.id.find('-', 4)), run.machine,
                           run.seq, run.recompute, run.fp32_reduction);
    runs.push_back(std::move(run));
  }
  std::map<std::string, std::pair<int, int>> sizes;
  for (const Run& run : runs) {
    auto& [least, most] = sizes.try_emplace(run.work, run.gpus, run.gpus).first->second;
    least = std::min(least, run.gpus);
    most = std::max(most, run.gpus);
  }
  std::erase_if(runs, [&](const Run& run) {
    return sizes[run.work].first == sizes[run.work].second || sizes[run.work].second <= 8;
  });
  return runs;
}

double StepSeconds(const Run& run) {
  HardwareProfile hardware = LoadProfile(run.machine);
  if (!run.network.empty()) ApplyNetwork(hardware, run.network);
  const int per_node = static_cast<int>(std::llround(hardware.node.gpus.value));
  const ClusterShape shape{run.gpus, std::min(run.gpus, per_node)};
  TrainSetup setup;
  setup.zero = ReaderZeroDefaults(run.stage);
  setup.zero.overlap_comm = true;
  setup.batch = {run.micro_batch, run.grad_accum, run.gpus, run.seq};
  setup.precision.dtype = setup.precision.grad_accum_dtype =
      run.dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  setup.precision.fp32_reduction = run.fp32_reduction;
  setup.recompute = run.recompute == "full" ? FullRecompute() : kNoRecompute;
  if (run.runtime == "zeroplan") {
    setup.zero = {};
    setup.zero.stage = run.stage;
    ValidateSetup(setup, run.id);
    LowerOptions options;
    options.backend = Backend::kCuda;
    options.flash_attention = hardware.gpu.flash_attention;
    const CostModel costs(hardware, shape);
    return StepTimer(costs).Time(Lower(run.model, setup, options)).total_seconds;
  }
  const TorchMachine machine(hardware, shape);
  TorchTimer timer(&machine, TimeConstants{});
  const Runtime& runtime = run.runtime == "fsdp2" ? Fsdp2Runtime() : DeepSpeedRuntime();
  dynamic_cast<const TorchBased&>(runtime).Play({run.model, setup, false, false, {}}, &timer);
  return timer.Time(run.grad_accum)->step_seconds;
}

struct Errors {
  std::vector<double> errors;
  void Add(double ratio) { errors.push_back(std::abs(std::log(ratio))); }
  std::string Text() {
    std::sort(errors.begin(), errors.end());
    const double median = errors[(errors.size() - 1) / 2];
    return fmt::format("{:>4} {:>9.1f}% {:>9.1f}%", errors.size(), 100 * std::expm1(median),
                       100 * std::expm1(errors.back()));
  }
};

void PrintGroups(const char* title, std::map<std::string, Errors>& groups) {
  fmt::print("\n{:<44} {:>4} {:>10} {:>10}\n", title, "runs", "median", "worst");
  for (auto& [name, errors] : groups) fmt::print("{:<44} {}\n", name, errors.Text());
}

int Main(int argc, char** argv) {
  const bool print_rows = argc > 1 && std::string_view(argv[1]) == "--rows";
  std::vector<Run> runs = ReadScaleRuns(ZEROPLAN_SOURCE_DIR);
  for (Run& run : ReadFsdpRuns(ZEROPLAN_SOURCE_DIR)) runs.push_back(std::move(run));
  std::map<std::string, const Run*> smallest;
  for (Run& run : runs) {
    const auto tokens = static_cast<double>(run.micro_batch * run.grad_accum * run.seq);
    run.predicted = tokens / StepSeconds(run);
    const Run*& found = smallest[run.work];
    if (found == nullptr || run.gpus < found->gpus) found = &run;
  }
  std::map<std::string, Errors> by_framework, by_nodes, by_held;
  if (print_rows) {
    fmt::print("{:<42} {:>5} {:>10} {:>10} {:>7} {:>9}\n", "run", "GPUs", "measured", "predicted",
               "ratio", "by nodes");
  }
  for (const Run& run : runs) {
    const Run& base = *smallest[run.work];
    const double grown = run.ratio() / base.ratio();
    if (print_rows) {
      fmt::print("{:<42} {:>5} {:>10.0f} {:>10.0f} {:>7.2f} {:>9.3f}{}\n", run.id, run.gpus,
                 run.measured, run.predicted, run.ratio(), grown, run.held ? "  held" : "");
    }
    by_framework[run.framework + ", " + run.machine].Add(run.ratio());
    if (&run == &base) continue;
    const int nodes = std::max(1, run.gpus / 8);
    const char* size = nodes <= 8 ? "2 to 8 nodes" : nodes <= 32 ? "9 to 32 nodes" : "33 and more";
    by_nodes[run.framework + ", " + size].Add(grown);
    by_held[run.held ? "held back" : "fitted, or looked at"].Add(grown);
  }
  PrintGroups("tokens/s predicted / measured", by_framework);
  PrintGroups("the same over that of the smallest run", by_nodes);
  PrintGroups("", by_held);
  return 0;
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) { return zeroplan::Main(argc, argv); }
