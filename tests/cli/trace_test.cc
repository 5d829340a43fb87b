// --trace: files of Chrome trace events, held to the rules that viewers go by.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;
using Lane = std::pair<int, int>;  // process, thread

struct Slice {
  int64_t begin_ns, end_ns;
  std::string name, section;
};
struct Trace {
  std::map<std::string, int> processes;
  std::map<int, std::set<std::string>> lanes;  // names, by process
  std::map<Lane, std::string> lane_names;
  std::map<Lane, std::vector<Slice>> slices;      // in order
  std::map<int, std::set<std::string>> counters;  // "device bytes params", by process
  std::map<int, int> arrows;                      // by process
};

int64_t Ns(const Json& microseconds) {
  const double ns = microseconds.get<double>() * 1e3;
  CHECK(std::abs(ns - std::round(ns)) < 1e-3);
  return std::llround(ns);
}

const Slice* SliceAt(const Trace& trace, const Lane& lane, int64_t ns) {
  const auto slices = trace.slices.find(lane);
  if (slices == trace.slices.end()) return nullptr;
  for (const Slice& slice : slices->second) {
    if (slice.begin_ns <= ns && ns < slice.end_ns) return &slice;
  }
  return nullptr;
}

// Reads a file and checks what any viewer of the format relies on.
Trace ReadTrace(const std::string& file) {
  const Json json = Json::parse(ReadWhole(file));
  Trace trace;
  std::map<std::string, std::pair<Lane, int64_t>> begun;  // arrows, by id
  std::set<std::string> ended;
  for (const Json& event : json.at("traceEvents")) {
    const std::string phase = event.at("ph"), name = event.at("name");
    const Lane lane = {event.at("pid"), event.at("tid")};
    CHECK(lane.first >= 1);
    CHECK_FALSE(name.empty());
    if (phase == "M") {
      if (name == "process_name") trace.processes.emplace(event.at("args").at("name"), lane.first);
      if (name == "thread_name") {
        const std::string of_lane = event.at("args").at("name");
        CHECK(trace.lanes[lane.first].insert(of_lane).second);
        // Threads of two processes must not have one number.
        for (const auto& [other, unused] : trace.lane_names) CHECK(other.second != lane.second);
        trace.lane_names.emplace(lane, of_lane);
      }
      continue;
    }
    CHECK(trace.lane_names.contains(lane));
    const int64_t ns = Ns(event.at("ts"));
    CHECK(ns >= 0);
    if (phase == "X") {
      const int64_t length = Ns(event.at("dur"));
      CHECK(length >= 0);
      std::vector<Slice>& slices = trace.slices[lane];
      if (!slices.empty()) CHECK(slices.back().end_ns <= ns);  // neither overlap nor nest
      slices.push_back({ns, ns + length, name, event.at("args").at("section")});
    } else if (phase == "C") {
      for (const auto& [series, value] : event.at("args").items()) {
        CHECK(value.is_number_unsigned());
        trace.counters[lane.first].insert(name + " " + series);
      }
    } else if (phase == "s") {
      CHECK(begun.emplace(name + " " + event.at("id").dump(), std::pair(lane, ns)).second);
      CHECK(SliceAt(trace, lane, ns) != nullptr);
      ++trace.arrows[lane.first];
    } else {
      REQUIRE(phase == "f");
      CHECK(event.at("bp") == "e");
      const std::string id = name + " " + event.at("id").dump();
      REQUIRE(begun.contains(id));
      CHECK(ended.insert(id).second);
      CHECK(begun.at(id).second <= ns);
      CHECK(begun.at(id).first.first == lane.first);
      CHECK(begun.at(id).first.second != lane.second);
      const Slice* to = SliceAt(trace, lane, ns);
      REQUIRE(to != nullptr);
      CHECK(to->begin_ns == ns);
    }
  }
  CHECK(begun.size() == ended.size());
  return trace;
}

std::set<std::string> NamesOf(const Trace& trace, int process) {
  std::set<std::string> names;
  for (const auto& [lane, slices] : trace.slices) {
    if (lane.first != process) continue;
    for (const Slice& slice : slices) names.insert(slice.name);
  }
  return names;
}

using Counters = std::set<std::string>;

const Counters kWithoutOffload = {"device bytes params",    "device bytes grads",
                                  "device bytes optimizer", "device bytes activations",
                                  "device bytes buffers",   "arena bytes device",
                                  "arena bytes pinned"};
// Its states are on the host, and so are the sums of its gradients.
const Counters kOffloaded = {"device bytes params",  "device bytes activations",
                             "device bytes buffers", "arena bytes device",
                             "arena bytes pinned",   "arena bytes pageable"};
const Counters kOnDisk = {"device bytes params", "device bytes activations", "device bytes buffers",
                          "arena bytes device",  "arena bytes pinned",       "arena bytes file"};

TEST_CASE("train --trace: predicted and measured as two processes with the same lanes and names") {
  const Workspace work;
  const std::string model = work.path("config.json"), plan = work.path("plan.json");
  REQUIRE(RunZeroplan("plan --model " + model +
                      " --seq-len 32 --gpus 2 --stage 2 --offload-optimizer none --global-batch 8 "
                      "--micro-batch 1 --hw dgx-h100 --plan-out " +
                      plan)
              .exit_code == 0);
  const RunResult run =
      RunZeroplan("train --plan " + plan + " --data " + SourcePath("LICENSE") +
                  " --backend cpu --threads 1 --steps 3 --trace " + work.path("t.json"));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const Trace trace = ReadTrace(work.path("t.json"));
  REQUIRE(trace.processes.size() == 3);
  const int measured = trace.processes.at("rank 0"), predicted = trace.processes.at("predicted");
  CHECK(trace.lanes.at(measured) == trace.lanes.at(predicted));
  CHECK(trace.lanes.at(predicted).contains("layers"));
  CHECK(trace.lanes.at(predicted).contains("reduce"));
  const std::set<std::string> names = NamesOf(trace, measured);
  for (const std::string& name : NamesOf(trace, predicted)) {
    CAPTURE(name);
    CHECK(names.contains(name));
  }
  CHECK(names.contains("layer 1 backward"));
  CHECK(names.contains("reduce_scatter"));
  for (const auto& [name, process] : trace.processes) {
    CHECK(trace.counters.at(process) == kWithoutOffload);
    CHECK(trace.arrows.at(process) > 5);
  }
  // The predicted step begins where the last whole one that was measured does.
  const auto begins = [&](int process) {
    std::vector<int64_t> of_steps;
    for (const auto& [lane, name] : trace.lane_names) {
      if (lane.first != process || name != "compute") continue;
      bool updated = true;
      for (const Slice& slice : trace.slices.at(lane)) {
        if (slice.section == "optimizer_step") updated = true;
        if (slice.section != "micro_step" || !updated) continue;
        of_steps.push_back(slice.begin_ns);
        updated = false;
      }
    }
    return of_steps;
  };
  REQUIRE(begins(measured).size() == 3);
  REQUIRE(begins(predicted).size() == 1);
  CHECK(std::abs(begins(measured)[2] - begins(predicted)[0]) <= 1);
}

TEST_CASE("train --trace on the CPU alone says that nothing is predicted") {
  const Workspace work;
  const RunResult run = RunZeroplan(
      work.Train("--gpus 2 --stage 3 --validate-every 2 --trace " + work.path("t.json"), 4));
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, wording::kNoPredictedStepThereIs));
  const Trace trace = ReadTrace(work.path("t.json"));
  CHECK(trace.processes.size() == 2);
  CHECK(trace.processes.contains("rank 1"));
}

TEST_CASE("estimate --trace keeps to the rules with offload, too") {
  const Workspace work;
  const std::vector<std::pair<std::string, Counters>> counters_of = {
      {"none", kWithoutOffload},
      {"cpu", kOffloaded},
      {"nvme --offload-param nvme --stage 3", kOnDisk},
  };
  for (const auto& [offload, counters] : counters_of) {
    CAPTURE(offload);
    const std::string stage = offload.find("--stage") == std::string::npos ? " --stage 2" : "";
    const RunResult run = RunZeroplan(
        "estimate --model gpt2 --seq-len 64 --gpus 2 --grad-accum 4 --offload-optimizer " +
        offload + stage + " --trace " + work.path("t.json"));
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const Trace trace = ReadTrace(work.path("t.json"));
    CHECK(trace.processes.size() == 1);
    CHECK(trace.counters.at(1) == counters);
    CHECK(trace.arrows.at(1) > 20);
    CHECK(NamesOf(trace, 1).contains("layer 11 forward"));
  }
}

}  // namespace
}  // namespace zeroplan
