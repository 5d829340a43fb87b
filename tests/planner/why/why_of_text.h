// Answers of `why` for logs that tests write, and what is looked for in them.
#pragma once

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "planner/why/why.h"
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

}  // namespace zeroplan
