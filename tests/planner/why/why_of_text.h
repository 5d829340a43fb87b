// Answers of `why` for logs that tests write, and what is looked for in them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "planner/why/why.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"

namespace zeroplan {

// Fields by name, as a command line has them.
class GivenFields : public FieldSink {
 public:
  void Take(AddedField field) override { fields_.push_back(std::move(field)); }
  void Set(const std::string& name, const std::string& text) {
    for (AddedField& field : fields_) {
      if (field.info.name == name) field.take(text, name);
    }
  }

 private:
  std::vector<AddedField> fields_;
};

inline WhyAnswer Why(const std::string& log,
                     const std::vector<std::pair<std::string, std::string>>& fields = {},
                     const std::string& add = "") {
  WhyRequest request;
  request.log = log;
  request.add = add;
  GivenFields given;
  AddWhyFields(given, request);
  for (const auto& [name, text] : fields) given.Set("⟦" + name + "⟧", text);
  return FindWhy(request);
}

inline WhyAnswer WhyOfText(const std::string& text,
                           const std::vector<std::pair<std::string, std::string>>& fields = {}) {
  const TempDir folder;
  const std::string file = folder.path("train.log");
  std::ofstream(file) << text;
  return Why(file, fields);
}

inline bool HasFinding(const WhyAnswer& answer, const std::string& part) {
  return std::any_of(answer.findings.begin(), answer.findings.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

inline const WhyChange* ChangeWith(const WhyAnswer& answer, const std::string& part) {
  for (const WhyChange& change : answer.changes) {
    if (change.options.find(part) != std::string::npos) return &change;
  }
  return nullptr;
}

using Fields = std::vector<std::pair<std::string, std::string>>;

inline WhyAnswer WhyOfFixture(const std::string& name, const Fields& fields = {}) {
  return Why(SourcePath("tests/fixtures/why/" + name), fields);
}

inline std::string TextOf(const RunLog& log, const std::string& field) {
  const LogFact* fact = log.Fact("⟦" + field + "⟧");
  return fact == nullptr ? "" : fact->text;
}

// The missing fields: "model gpus".
inline std::string Asked(const WhyAnswer& answer) {
  std::string fields;
  for (const MissingField& missing : answer.missing) {
    std::string name = missing.field;
    for (const std::string_view bracket : {"⟦", "⟧"}) name.erase(name.find(bracket), 3);
    fields += (fields.empty() ? "" : " ") + name;
  }
  return fields;
}

inline bool Assumes(const WhyAnswer& answer, const std::string& part) {
  return std::any_of(answer.assumed.begin(), answer.assumed.end(),
                     [&](const std::string& text) { return text.find(part) != text.npos; });
}

inline std::string Traceback(const std::vector<std::pair<std::string, std::string>>& frames,
                             const std::string& code = "call()") {
  std::string text = "Traceback (most recent call last):\n";
  for (const auto& [file, function] : frames) {
    text += fmt::format("  File \"/opt/lib/{}\", line 12, in {}\n    {}\n", file, function, code);
  }
  return text +
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 98.00 MiB. GPU 0 has a "
         "total capacity of 15.77 GiB of which 5.12 MiB is free. Including non-PyTorch memory, "
         "this process has 15.76 GiB memory in use. Of the allocated memory 13.76 GiB is allocated "
         "by PyTorch, and 540.64 MiB is reserved by PyTorch but unallocated.\n";
}

}  // namespace zeroplan
