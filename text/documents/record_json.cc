#include "text/documents/record_json.h"

#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/base/strings.h"

namespace zeroplan {
namespace {

// A text that is no JSON.
struct NoJson {
  std::string reason;
};

// Makes the value as it is read. The library's own parser takes the last of two members of one
// name, and makes a number with a fraction of an integer that is too large for 64 bits.
class RecordBuilder : public nlohmann::json_sax<RecordJson> {
 public:
  RecordBuilder(std::string_view where, RecordJson* root) : where_(where), next_(root) {}

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t& digits) override {
    if (digits.find_first_not_of("-0123456789") != std::string::npos) return Put(value);
    return Put(RecordJson::binary(std::vector<uint8_t>(digits.begin(), digits.end())));
  }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*members*/) override { return Open(RecordJson::object()); }
  bool start_array(size_t /*elements*/) override { return Open(RecordJson::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    const auto [member, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new) {
      ThrowUsage("{}: an object has the member {} twice, of which one would be lost; remove one",
                 where_, PrintableText(name, 40));
    }
    next_ = &*member;
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const RecordJson::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error ..."
    std::string_view reason = error.what();
    if (const size_t column = reason.find("column "); column != std::string_view::npos) {
      reason = reason.substr(column);
    }
    throw NoJson{PrintableText(reason, 160)};
  }

 private:
  // The place of the value that comes next.
  RecordJson* Place() {
    if (open_.empty() || open_.back()->is_object()) return next_;
    return &open_.back()->emplace_back(nullptr);
  }
  bool Put(RecordJson value) {
    *Place() = std::move(value);
    return true;
  }
  bool Open(RecordJson value) {
    RecordJson* place = Place();
    *place = std::move(value);
    open_.push_back(place);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  std::string_view where_;
  RecordJson* next_;
  std::vector<RecordJson*> open_;  // a value's place moves only once it is closed
};

RecordJson Parse(std::string_view text, std::string_view where) {
  CheckJsonBounds(text, where);
  RecordJson value;
  RecordBuilder builder(where, &value);
  RecordJson::sax_parse(text.begin(), text.end(), &builder);
  return value;
}

}  // namespace

RecordJson ParseRecord(std::string_view line, std::string_view where) {
  RecordJson record;
  try {
    record = Parse(line, where);
  } catch (const NoJson& error) {
    ThrowUsage("{}: is not one whole JSON value: {}; write one record a line", where, error.reason);
  }
  return record;
}

std::optional<RecordJson> ParseInRecord(std::string_view text, std::string_view where) {
  try {
    return Parse(text, where);
  } catch (const NoJson&) {
    return std::nullopt;
  }
}

bool HasMember(const RecordJson& object, const std::string& key) {
  const auto at = object.find(key);
  return at != object.end() && !at->is_null();
}

std::string_view JsonKind(const RecordJson& value) {
  return value.is_binary() ? "number" : value.type_name();
}

std::string TextOf(const RecordJson& value, std::string_view where, const std::string& path) {
  if (!value.is_string()) ThrowUsage("{}: {}: is {}, must be a text", where, path, JsonKind(value));
  return value.get<std::string>();
}

const RecordJson& MemberOf(const RecordJson& object, const std::string& key,
                           std::string_view where) {
  const auto at = object.find(key);
  if (at == object.end()) {
    ThrowUsage("{}: {} is missing, which the file's first record has; {}", where, key,
               "all records of a file have the same form");
  }
  return *at;
}

jinja::Value AsTemplateValue(const RecordJson& value, std::string_view where,
                             const std::string& path, int depth) {
  if (depth > kMostJsonDepth) ThrowUsage("{}: {}: is nested too deep", where, path);
  if (value.is_string()) return jinja::Value::Of(value.get_ref<const std::string&>());
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_array()) {
    jinja::List list;
    for (const RecordJson& element : value) {
      list.push_back(AsTemplateValue(element, where, path, depth + 1));
    }
    return list;
  }
  if (value.is_object()) {
    jinja::Dict dict;
    for (const auto& [key, member] : value.items()) {
      dict.Set(key, AsTemplateValue(member, where, path, depth + 1));
    }
    return dict;
  }
  if (value.is_binary()) {
    const std::vector<uint8_t>& digits = value.get_binary();
    return jinja::Value::Integer(std::string(digits.begin(), digits.end()));
  }
  if (value.is_number_integer()) return jinja::Value::Integer(value.dump());
  if (value.is_number()) return value.get<double>();
  return jinja::None();
}

}  // namespace zeroplan
