// The JSON of records, as Python's json module reads it, and what is wrong with it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace zeroplan {

// An integer that 64 bits do not hold is kept as its digits, in a binary value.
using RecordJson = nlohmann::ordered_json;

// Throws Error(kUsage) starting with `where` if the line is no whole JSON value, is past the
// bounds of records (CheckJsonBounds), or if an object in it has a member twice.
RecordJson ParseRecord(std::string_view line, std::string_view where);
// A text in a record that is JSON itself; nullopt: it is none. Throws as ParseRecord otherwise.
std::optional<RecordJson> ParseInRecord(std::string_view text, std::string_view where);

// Whether it has a member of that name that is not null.
bool HasMember(const RecordJson& object, const std::string& key);
// "a number": for messages.
std::string_view JsonKind(const RecordJson& value);

// Throw Error(kUsage) starting with `where` and naming `path`: the value is no text; the member is
// missing, which the first record of the file has; the value is nested too deep.
std::string TextOf(const RecordJson& value, std::string_view where, const std::string& path);
const RecordJson& MemberOf(const RecordJson& object, const std::string& key,
                           std::string_view where);
jinja::Value AsTemplateValue(const RecordJson& value, std::string_view where,
                             const std::string& path, int depth = 0);

}  // namespace zeroplan
