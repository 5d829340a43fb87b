// The families of models that zeroplan trains.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/model/model_family.h"

namespace zeroplan {

using FamilyList = std::span<const ModelFamily* const>;

// The one list of them. The first is the default: a parameter count becomes a model of it, and
// files that name no family mean it.
FamilyList ModelFamilies();

// nullptr if no family has that name.
const ModelFamily* FamilyNamed(std::string_view name);

// The name to write into a file of zeroplan's own: empty for the default family, which is left out.
std::string_view FamilyInFile(const ModelFamily& family);
// What a file says: `name` as FamilyInFile gave it. Throws Error(kUsage) naming `where` (a file and
// key) and the families there are.
const ModelFamily* FamilyFromFile(std::string_view name, std::string_view where);

// "\"gpt2\"", for messages.
std::string QuotedNames(FamilyList families);

}  // namespace zeroplan
