#include "cli/common/command_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace zeroplan {

const OutputKind kPage = {"a page that zeroplan wrote",
                          {"default-src 'none'; style-src 'unsafe-inline'"}};
const OutputKind kTrace = {"a trace that zeroplan wrote",
                           {R"({"displayTimeUnit":"ms","traceEvents":[)"}};

namespace {

namespace fs = std::filesystem;

constexpr size_t kLookedAt = size_t{1} << 20;

std::optional<struct stat> StatusOf(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? std::optional(status) : std::nullopt;
}

bool IsFolder(const fs::path& path) {
  const auto status = StatusOf(path);
  return status && S_ISDIR(status->st_mode);
}

// A file that can be lost: no device, no pipe.
bool IsRegular(const fs::path& path) {
  const auto status = StatusOf(path);
  return status && S_ISREG(status->st_mode);
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

fs::path Canonical(const fs::path& path) {
  std::error_code error;
  fs::path found = fs::weakly_canonical(fs::absolute(path, error), error);
  if (!found.has_filename()) found = found.parent_path();  // "a/"
  return found;
}

bool LiesBelow(const fs::path& path, const fs::path& folder) {
  const fs::path inner = Canonical(path), outer = Canonical(folder);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

bool IsWritten(const CommandFile& file) { return file.role.use == PathRole::Use::kWrite; }
bool IsRead(const CommandFile& file) {
  return file.role.use == PathRole::Use::kRead || file.role.use == PathRole::Use::kReadBelow;
}

// "" if the file can be written, as far as can be told without doing it.
std::string WhyNotWritable(const fs::path& file) {
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) return "is a folder; name a file in it";
  if (fs::exists(file, ignored)) {
    return access(file.c_str(), W_OK) == 0 ? "" : "may not be written; choose another file";
  }
  const fs::path folder = ParentFolder(file);
  if (!fs::is_directory(folder, ignored)) {
    return fmt::format("there is no folder {}; create it, or choose another", folder.string());
  }
  if (access(folder.c_str(), W_OK | X_OK) == 0) return "";
  return fmt::format("nothing may be written in {}; choose another folder", folder.string());
}

// The file of `folder` that is `target`, links followed; empty: none is.
template <typename Iterator>
fs::path FileIn(const fs::path& folder, const struct stat& target) {
  std::error_code error;
  for (Iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end; at.increment(error)) {
    const auto status = StatusOf(at->path());
    if (status && SameFile(*status, target)) return at->path();
  }
  return {};
}

void CheckAgainst(const CommandFile& written, const CommandFile& read) {
  const bool all = read.role.use == PathRole::Use::kReadBelow, folder = IsFolder(read.path);
  if (all && folder && LiesBelow(written.path, read.path)) {
    ThrowUsage("{}: {}: lies below the folder {}, all of which {} reads; choose another folder",
               written.option, written.path, read.path, read.option);
  }
  const auto target = StatusOf(written.path);
  if (!IsWritten(written) || !target || !S_ISREG(target->st_mode)) return;
  if (!folder) {
    const auto status = StatusOf(read.path);
    if (!status || !SameFile(*status, *target)) return;
    ThrowUsage("{}: {}: is the file that {} reads{}; choose another file", written.option,
               written.path, read.option, read.path == written.path ? "" : ", " + read.path);
  }
  const fs::path found = all ? FileIn<fs::recursive_directory_iterator>(read.path, *target)
                             : FileIn<fs::directory_iterator>(read.path, *target);
  if (found.empty()) return;
  // An earlier result may lie there; what else lies there is the folder's.
  if (!all && IsOfKind(found, *written.role.kind)) return;
  ThrowUsage("{}: {}: is {}, a file of the folder that {} reads; choose another file",
             written.option, written.path, found.string(), read.option);
}

// What is read by the command that runs.
std::vector<CommandFile> g_read;

}  // namespace

bool IsOfKind(const fs::path& file, const OutputKind& kind) {
  if (!IsRegular(file)) return true;
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  std::string head(kLookedAt, '\0');
  size_t size = 0;
  while (fd && size < head.size()) {
    const ssize_t bytes = ::read(fd.get(), head.data() + size, head.size() - size);
    if (bytes <= 0) break;
    size += static_cast<size_t>(bytes);
  }
  head.resize(size);
  // What was cut off within the mark is of the kind, too: nothing, for one.
  return std::any_of(kind.marks.begin(), kind.marks.end(), [&](std::string_view mark) {
    return head.find(mark) != std::string::npos || (fd && mark.starts_with(head));
  });
}

void CheckMoreFiles(const std::vector<CommandFile>& written) {
  for (size_t i = 0; i < written.size(); ++i) {
    const CommandFile& file = written[i];
    for (const CommandFile& read : g_read) CheckAgainst(file, read);
    if (!IsWritten(file)) continue;
    ExpectFiles();
    const std::string why = WhyNotWritable(file.path);
    if (!why.empty()) ThrowUsage("{}: {}: {}", file.option, file.path, why);
    for (size_t j = 0; j < i; ++j) {
      const bool is_device = StatusOf(file.path) && !IsRegular(file.path);
      if (!IsWritten(written[j]) || is_device ||
          Canonical(file.path) != Canonical(written[j].path)) {
        continue;
      }
      ThrowUsage("{}: {} is also what {} writes; choose another file", file.option, file.path,
                 written[j].option);
    }
    if (IsOfKind(file.path, *file.role.kind)) continue;
    ThrowUsage("{}: {}: is there already and is not {}; remove it, or choose another file",
               file.option, file.path, file.role.kind->what);
  }
}

void CheckFiles(std::vector<CommandFile> files) {
  const auto written = std::stable_partition(files.begin(), files.end(), IsRead);
  g_read.assign(files.begin(), written);
  CheckMoreFiles(std::vector<CommandFile>(written, files.end()));
}

}  // namespace zeroplan
