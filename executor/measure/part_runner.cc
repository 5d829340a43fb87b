#include "executor/measure/part_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>

#include "core/base/error.h"

namespace zeroplan {

void PartRunner::Run(const std::string& name, const std::string& what, const Measure& measure) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto failed = [&](const char* why) {
    result_.failed.push_back({name, why});
    say_(fmt::format("{}: failed after {:.1f} s: {}", name, seconds(), why));
    ThrowRuntime("measuring {}: {}", name, why);
  };
  say_(fmt::format("{}: {}", name, what));
  // Half a table would pass for a whole one.
  MachineMeasurement found = result_;
  try {
    measure(found);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kRuntime) throw;
    failed(error.what());
  } catch (const std::exception& error) {
    failed(error.what());
  }
  result_ = std::move(found);
  // A part in two pieces is listed once.
  if (result_.measured.empty() || result_.measured.back() != name) {
    result_.measured.push_back(name);
  }
  say_(fmt::format("{}: {:.1f} s", name, seconds()));
}

bool PartRunner::Try(const std::string& name, const std::string& what, const Measure& measure) {
  const size_t before = result_.failed.size();
  try {
    Run(name, what, measure);
  } catch (const Error&) {
    if (result_.failed.size() == before) throw;
    return false;
  }
  return true;
}

std::vector<double> GatherNumbers(ProcessGroup& group, double own) {
  std::vector<double> numbers;
  for (const std::string& text : group.AllGather(fmt::format("{:.17g}", own))) {
    numbers.push_back(std::strtod(text.c_str(), nullptr));
  }
  return numbers;
}

int RanksOfAHost(ProcessGroup& group) {
  const int own = group.place().local_world_size;
  const std::vector<double> sizes = GatherNumbers(group, own);
  const std::vector<double> places = GatherNumbers(group, group.place().local_rank);
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const double size = sizes[static_cast<size_t>(rank)], place = places[static_cast<size_t>(rank)];
    if (size != own) {
      ThrowUsage("hw measure: hosts have {} and {} ranks; start as many on each", own, size);
    }
    if (place != rank % own) {
      ThrowUsage(
          "hw measure: rank {} is rank {} of its host, which has {}, so its ranks do not follow "
          "one another; start them host by host",
          rank, place, own);
    }
  }
  if (group.world_size() % own != 0) {
    ThrowUsage("hw measure: {} ranks are not whole hosts of {}; start as many on each",
               group.world_size(), own);
  }
  return own;
}

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

namespace {

constexpr const char* kRows = "rows";
constexpr const char* kFailed = "failed ";

}  // namespace

std::string AttentionText(const MachineMeasurement& found) {
  for (const FailedPart& part : found.failed) {
    if (part.name == "attention") return kFailed + part.why;
  }
  std::string text = fmt::format("{} {}", kRows, found.kernels.attention.size());
  for (const AttentionRate& row : found.kernels.attention) {
    text += fmt::format("\n{} {} {} {} {:.17g} {:.17g}", row.batch, row.heads, row.seq,
                        row.head_dim, row.forward_flops_per_second, row.backward_flops_per_second);
  }
  return text;
}

std::vector<AttentionRate> AttentionOfText(const std::string& text) {
  if (text.starts_with(kFailed)) {
    ThrowRuntime("{}", text.substr(std::char_traits<char>::length(kFailed)));
  }
  std::istringstream in(text);
  std::string word, more;
  size_t count = 0;
  bool whole = in >> word >> count && word == kRows;
  std::vector<AttentionRate> rows;
  for (AttentionRate row; whole && rows.size() < count; rows.push_back(row)) {
    in >> row.batch >> row.heads >> row.seq >> row.head_dim >> row.forward_flops_per_second >>
        row.backward_flops_per_second;
    whole = !in.fail();
  }
  if (!whole || in >> more) {
    ThrowRuntime("another rank's rows cannot be read: \"{}\"", text.substr(0, 60));
  }
  return rows;
}

}  // namespace zeroplan
