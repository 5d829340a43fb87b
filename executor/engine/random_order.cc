#include "executor/engine/random_order.h"

#include <algorithm>
#include <variant>

namespace zeroplan {
namespace {

constexpr std::array<When, 4> kKinds = {kOnly, kFirst, kMiddle, kLast};

}  // namespace

uint64_t OrderRng::Next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The micro-step's four kinds come first, then the other sections by number.
size_t RandomOrder::PlanIndex(Section section, When kind) {
  if (section != Section::kMicroStep) return kKinds.size() + static_cast<size_t>(section);
  const auto* found = std::find(kKinds.begin(), kKinds.end(), kind);
  ZEROPLAN_CHECK(found != kKinds.end(), "{} is no kind of micro-step", static_cast<int>(kind));
  return static_cast<size_t>(found - kKinds.begin());
}

RandomOrder::RandomOrder(const Program& program, uint64_t seed) : rng_(seed) {
  plans_.resize(kKinds.size() + kSections);
  size_t longest = 0;
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    longest = std::max(longest, program.section(section).size());
    for (const When kind : kKinds) {
      plans_[PlanIndex(section, kind)] = MakePlan(program, section, kind);
    }
  }
  done_.resize(longest);
}

RandomOrder::Plan RandomOrder::MakePlan(const Program& program, Section section, When kind) {
  Plan plan;
  std::vector<int32_t> recorded(program.event_count, -1);
  const std::vector<Instruction>& instructions = program.section(section);
  for (size_t i = 0; i < instructions.size(); ++i) {
    const Instruction& instruction = instructions[i];
    if (section == Section::kMicroStep && (instruction.when & kind) == 0) continue;
    Item item{static_cast<int32_t>(i), -1};
    if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
      item.after = recorded[wait->event];
    } else if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
      recorded[record->event] = item.index;
    }
    plan.queues[static_cast<size_t>(instruction.stream)].push_back(item);
    ++plan.items;
  }
  return plan;
}

void RandomOrder::Begin() {
  head_.fill(0);
  std::fill(done_.begin(), done_.end(), uint8_t{0});
  // Even odds would keep the streams about level. Some run far ahead instead, others in other
  // sections.
  for (uint64_t& weight : weight_) weight = uint64_t{1} << (4 * rng_.Below(4));
}

int RandomOrder::Pick(const Plan& plan) {
  std::array<uint64_t, kStreams> odds{};
  uint64_t total = 0;
  for (size_t s = 0; s < odds.size(); ++s) {
    if (head_[s] == plan.queues[s].size()) continue;
    const int32_t after = plan.queues[s][head_[s]].after;
    if (after >= 0 && done_[static_cast<size_t>(after)] == 0) continue;
    odds[s] = weight_[s];
    total += odds[s];
  }
  if (total == 0) return -1;
  uint64_t drawn = rng_.Below(total);
  for (size_t s = 0; s < odds.size(); ++s) {
    if (drawn < odds[s]) return static_cast<int>(s);
    drawn -= odds[s];
  }
  return -1;
}

}  // namespace zeroplan
