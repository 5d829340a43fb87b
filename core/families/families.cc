#include "core/families/families.h"

#include "core/base/error.h"
#include "core/families/gpt2/gpt2.h"
#include "core/families/llama/llama.h"

namespace zeroplan {

FamilyList ModelFamilies() {
  static const ModelFamily* const families[] = {&Gpt2(), &Llama(), &Mistral(), &Qwen2(), &Qwen3()};
  return families;
}

const ModelFamily* FamilyNamed(std::string_view name) {
  for (const ModelFamily* family : ModelFamilies()) {
    if (family->name() == name) return family;
  }
  return nullptr;
}

std::string_view FamilyInFile(const ModelFamily& family) {
  return &family == ModelFamilies().front() ? std::string_view() : family.name();
}

const ModelFamily* FamilyFromFile(std::string_view name, std::string_view where) {
  if (name.empty()) return ModelFamilies().front();
  const ModelFamily* family = FamilyNamed(name);
  if (family == nullptr) {
    ThrowUsage("{}: {} is not allowed; use {}", where, name, QuotedNames(ModelFamilies()));
  }
  return family;
}

std::string QuotedNames(FamilyList families) {
  std::string names;
  for (const ModelFamily* family : families) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : " or ", family->name());
  }
  return names;
}

}  // namespace zeroplan
