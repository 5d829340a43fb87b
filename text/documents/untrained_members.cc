#include "text/documents/untrained_members.h"

#include <algorithm>

#include "core/base/log.h"
#include "core/base/strings.h"
#include "text/files/data_files.h"

namespace zeroplan {
namespace {

constexpr size_t kMostNames = 12;

void AddNew(const std::vector<std::string>& found, std::vector<std::string>* names) {
  for (const std::string& name : found) {
    if (names->size() > kMostNames) return;
    if (std::find(names->begin(), names->end(), name) == names->end()) names->push_back(name);
  }
}

std::string ListOf(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    text += (i == 0 ? "" : ", ") + PrintableText(names[i], 60);
  }
  return names.size() > kMostNames ? text + " and others" : text;
}

}  // namespace

void UntrainedMembers::Add(const std::string& where, const std::vector<std::string>& unused,
                           const std::vector<std::string>& unprinted) {
  if (unused.empty() && unprinted.empty()) return;
  const std::filesystem::path file = where.substr(0, where.rfind(':'));
  if (all_.empty() || all_.back().files[0] != file) all_.push_back({{file}, {}, {}});
  AddNew(unused, &all_.back().unused);
  AddNew(unprinted, &all_.back().unprinted);
}

void UntrainedMembers::Say() const {
  std::vector<OfFile> different;
  for (const OfFile& one : all_) {
    const auto same = std::find_if(different.begin(), different.end(), [&](const OfFile& other) {
      return other.unused == one.unused && other.unprinted == one.unprinted;
    });
    if (same == different.end()) {
      different.push_back(one);
    } else {
      same->files.push_back(one.files[0]);
    }
  }
  for (const OfFile& one : different) {
    const std::string files = FileNames(one.files);
    if (!one.unused.empty())
      LogInfo("{}: members that are not used: {}.", files, ListOf(one.unused));
    if (!one.unprinted.empty()) {
      LogWarning("{}: the chat template prints nothing of {}.", files, ListOf(one.unprinted));
    }
  }
}

}  // namespace zeroplan
