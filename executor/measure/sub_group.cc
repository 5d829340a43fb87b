#include "executor/measure/sub_group.h"

#include <algorithm>
#include <cstring>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// The first letter of rank 0's part says whether the members go on.
constexpr char kGoesOn = '+', kDismissed = '.';

}  // namespace

SubGroup::SubGroup(ProcessGroup& parent, int members)
    : parent_(parent), members_(members), place_(parent.place()) {
  ZEROPLAN_CHECK(members >= 1 && members <= parent.world_size());
  place_.world_size = members;
  place_.local_world_size = std::min(place_.local_world_size, members);
}

std::vector<std::string> SubGroup::AllGather(const std::string& text) {
  std::vector<std::string> parts = parent_.AllGather(kGoesOn + text);
  parts.resize(static_cast<size_t>(members_));
  for (std::string& part : parts) part.erase(0, 1);
  return parts;
}

void SubGroup::Barrier() { AllGather(""); }

void SubGroup::Broadcast(std::span<std::byte> bytes) {
  std::string own;
  if (rank() == 0) own.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string sent = AllGather(own).front();
  ZEROPLAN_CHECK(sent.size() == bytes.size(), "{} bytes sent, {} wanted", sent.size(),
                 bytes.size());
  std::memcpy(bytes.data(), sent.data(), sent.size());
}

void SubGroup::Dismiss() { parent_.AllGather(std::string(1, kDismissed)); }

void SubGroup::Follow() {
  while (parent_.AllGather("").front().front() == kGoesOn) {
  }
}

}  // namespace zeroplan
