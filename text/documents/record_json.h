// The JSON of records, parsed as by Python's json module, and its errors.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace zeroplan {

// An integer that does not fit 64 bits is kept as its digits, in a binary value.
using RecordJson = nlohmann::ordered_json;

// Throws Error(kUsage) starting with `where` if the line is no whole JSON value, exceeds the bounds
// of records (CheckJsonBounds), or if an object in it has a member twice.
RecordJson ParseRecord(std::string_view line, std::string_view where);
// Parses a text in a record as JSON; nullopt: it is none. Otherwise throws as ParseRecord.
std::optional<RecordJson> ParseInRecord(std::string_view text, std::string_view where);

// Whether the object has a member of that name that is not null.
bool HasMember(const RecordJson& object, const std::string& key);
// "a number": for messages.
std::string_view JsonKind(const RecordJson& value);

// Throw Error(kUsage) starting with `where` and naming `path` if the value is no text; if the
// member, which the file's first record has, is missing; if the value is nested too deep.
std::string TextOf(const RecordJson& value, std::string_view where, const std::string& path);
const RecordJson& MemberOf(const RecordJson& object, const std::string& key,
                           std::string_view where);
jinja::Value AsTemplateValue(const RecordJson& value, std::string_view where,
                             const std::string& path, int depth = 0);

}  // namespace zeroplan
