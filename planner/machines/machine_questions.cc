#include "planner/machines/machine_questions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"
#include "planner/request/resolve.h"

namespace zeroplan {
namespace {

constexpr int kMostInHost = 8;

void Refuse(const PlanRequest& request) {
  const MachineFields& machines = request.machines;
  const Request& common = request.common;
  const auto refuse = [](std::string_view field, std::string_view value, std::string_view fix) {
    ThrowUsage("{}: {} is not compared over machines; {}", field, value, fix);
  };
  if (request.largest) {
    refuse("⟦largest⟧", request.largest.text, "leave it out, or name one machine");
  }
  if (request.compared) refuse("⟦method⟧", request.compared.text, "use one of full, lora, qlora");
  if (request.objective && *request.objective != Objective::kThroughput) {
    refuse("⟦objective⟧", request.objective.text, "use time, cost or energy, or name one machine");
  }
  if (!common.goal.tokens && !common.goal.data.given()) {
    for (const auto& [field, given] : {std::pair("⟦deadline⟧", machines.deadline.has_value()),
                                       std::pair("⟦budget⟧", machines.budget.has_value())}) {
      if (given) {
        ThrowUsage(
            "{}: has no effect without ⟦tokens⟧; add the run's tokens, such as "
            "⟦tokens⟧ 10B",
            field);
      }
    }
  }
  if (common.goal.gpu_hour_price && !machines.prices.empty()) {
    ThrowUsage("⟦gpu_hour_price⟧: {} is not allowed with ⟦prices⟧; leave one of the two out",
               common.goal.gpu_hour_price.text);
  }
  if (common.goal.gpu_hour_price && (machines.any || machines.hw.size() > 1)) {
    ThrowUsage(
        "⟦gpu_hour_price⟧: {} is one price, and several machines are compared; use ⟦prices⟧ FILE",
        common.goal.gpu_hour_price.text);
  }
  if (machines.any && (common.cluster.gpus_per_node || !common.hardware.network.empty() ||
                       !common.hardware.intra_node_bandwidth.empty())) {
    ThrowUsage("⟦hw⟧: any takes each machine's own links and GPUs a node; name the machines");
  }
}

PlanRequest QuestionOf(const PlanRequest& request, const std::string& hw, int gpus) {
  PlanRequest question = request;
  question.machines = {};
  question.quick = true;
  question.common.goal = {.data = request.common.goal.data};
  question.common.hardware.profile = hw;
  Set(question.common.cluster.gpus, gpus);
  return question;
}

// 1, 2, 4, ... up to `most`, which is the last.
std::vector<int> Doublings(int most) {
  std::vector<int> counts;
  for (int count = 1; count < most; count *= 2) counts.push_back(count);
  counts.push_back(most);
  return counts;
}

// Cards in as many as were asked for, as far as one host holds them, and machines as a whole.
std::vector<PlanRequest> AnyMachines(const PlanRequest& request, const std::vector<int>& counts) {
  std::vector<PlanRequest> questions;
  std::set<std::pair<std::string, int>> seen;  // profiles
  for (const std::string& name : ProfileNames()) {
    if (!IsCard(name)) continue;
    const bool alone = name.ends_with("-laptop") || name.starts_with("gh200");
    for (const int count : counts) {
      if (count > kMostInHost || (alone && count > 1)) continue;
      seen.emplace(FindProfile(name, count).profile.name, count);
      questions.push_back(QuestionOf(request, name, count));
    }
  }
  for (const KnownMachine& machine : KnownMachines()) {
    const int gpus = static_cast<int>(std::lround(machine.gpus));
    if (IsCard(machine.name) || gpus < 2) continue;
    for (const int count : counts) {
      if (count % gpus != 0 || !seen.emplace(machine.name, count).second) continue;
      questions.push_back(QuestionOf(request, machine.name, count));
    }
  }
  return questions;
}

}  // namespace

std::vector<PlanRequest> MachineQuestions(const PlanRequest& request) {
  Refuse(request);
  const MachineFields& machines = request.machines;
  const std::optional<int>& most = request.common.cluster.gpus;
  std::vector<int> counts = machines.gpus;
  if (counts.empty() && most) {
    const bool named = machines.any || machines.hw.size() > 1;
    counts = named ? std::vector{*most} : Doublings(*most);
  }
  if (machines.any) {
    std::vector<PlanRequest> all =
        AnyMachines(request, counts.empty() ? Doublings(kMostInHost) : counts);
    if (all.empty()) {
      ThrowUsage("⟦gpus⟧: no built-in machine has {}; use numbers such as 1, 2, 4 or 8",
                 fmt::join(counts, " or "));
    }
    return all;
  }
  std::vector<std::string> names = machines.hw;
  if (names.empty()) names = {request.common.hardware.profile};
  std::vector<PlanRequest> questions;
  std::map<std::pair<std::string, int>, std::string> known;
  for (const std::string& name : names) {
    std::vector<int> of_name = counts;
    int own = 0;  // the machine's GPUs
    if (name.empty()) {
      Assumptions unused;
      const HardwareProfile found =
          ResolveHardware(request.common.hardware, {}, unused, MeasureHost::kYes);
      own = unused.detected_gpus.value_or(found.node.gpu_count());
    } else {
      const NamedProfile named = FindProfile(name);
      own = named.gpus > 0 ? named.gpus : named.profile.node.gpu_count();
      const auto [same, first] = known.try_emplace({named.profile.name, named.gpus}, name);
      if (!first) {
        ThrowUsage("⟦hw⟧: {} and {} are the same machine; name it once", same->second, name);
      }
    }
    if (of_name.empty()) of_name = names.size() == 1 ? Doublings(own) : std::vector{own};
    for (const int gpus : of_name) questions.push_back(QuestionOf(request, name, gpus));
  }
  return questions;
}

}  // namespace zeroplan
