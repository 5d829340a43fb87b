// The request that options and a log come to together.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "planner/why/why.h"

namespace zeroplan {

// A text of the log as a file, for readers that take one; gone with this.
class LogText {
 public:
  // `named`: what messages call it.
  LogText(const std::string& text, std::string named);
  ~LogText();
  LogText(const LogText&) = delete;
  LogText& operator=(const LogText&) = delete;

  const std::string& path() const { return path_; }
  // `text` with its name in place of the path.
  std::string Named(std::string text) const;

 private:
  std::filesystem::path folder_;
  std::string path_, named_;
};

struct MergedRequest {
  Request common;
  std::vector<UsedFact> used;
  std::vector<std::string> conflicts, assumed;
  std::vector<MissingField> missing;
  // Of the log: DeepSpeed's config with what options changed in it, and the model's.
  std::unique_ptr<LogText> config, model_config;
  std::string config_text;  // as JSON
  bool hardware_known = false;

  std::string Named(std::string text) const;
};

// What a process may take of the GPU that a failure tells of: all but what others have. Unset: it
// does not tell.
std::optional<uint64_t> UsableOf(const OomMessage& gpu);

// Sets a field as an option does. False: there is none of that name, or it does not take the text.
bool SetField(Request& request, const std::string& field, const std::string& text);

MergedRequest MergeLog(const WhyRequest& request, const RunLog& log);

}  // namespace zeroplan
