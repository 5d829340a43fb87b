#include "executor/checkpoint/checkpoint_meta.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/json_source.h"
#include "core/families/load_model.h"
#include "core/model/model_fields.h"
#include "executor/checkpoint/safetensors.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::is_trivially_copyable_v<StepState>, "saved as its bytes");

std::string HexState(const StepState& state) { return BytesToHex(&state, sizeof state); }

constexpr size_t kHashDigits = 16;

bool ParseHash(std::string_view digits, uint64_t& out) {
  const char* end = digits.data() + digits.size();
  return digits.size() == kHashDigits && std::from_chars(digits.data(), end, out, 16).ptr == end;
}

std::string HexHashes(const std::vector<uint64_t>& hashes) {
  std::string text;
  for (const uint64_t hash : hashes) text += fmt::format("{:016x}", hash);
  return text;
}

constexpr std::string_view kSeal = ",\n  \"digest\": \"";

void CheckSeal(std::string_view text, const std::filesystem::path& path) {
  const size_t seal = text.rfind(kSeal);
  if (seal == std::string_view::npos ||
      text != SealJson(fmt::format("{}\n}}", text.substr(0, seal)))) {
    ThrowUsage("{}: digest: the text is not the one that was saved", path.string());
  }
}

// Reads the keys of one JSON object; every error names the file and the key.
class Reader {
 public:
  Reader(const Json& json, const std::filesystem::path& file) : json_(json), file_(file) {
    if (!json.is_object()) ThrowUsage("{}: not a JSON object", file.string());
  }

  bool Has(std::string_view key) const { return json_.contains(key); }
  std::string Where(std::string_view key) const {
    return fmt::format("{}: {}", file_.string(), key);
  }
  template <typename T>
  void Read(std::string_view key, T& out) const {
    const Json& value = Get(key);
    if constexpr (std::is_same_v<T, std::string>) {
      if (!value.is_string()) Fail(key, "a string");
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!value.is_boolean()) Fail(key, "true or false");
    } else if constexpr (std::is_floating_point_v<T>) {
      // Past float's range it would become infinite, which JSON cannot write.
      if (!value.is_number() || !(std::abs(value.get<double>()) <= std::numeric_limits<T>::max())) {
        Fail(key, "a number");
      }
    } else if (!value.is_number_unsigned() ||
               value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<T>::max())) {
      Fail(key, "a non-negative integer");
    }
    out = value.get<T>();
  }
  void Hash(std::string_view key, uint64_t& out) const {
    std::string text;
    Read(key, text);
    if (text.size() != kHashDigits || !ParseHash(text, out)) Fail(key, "16 hexadecimal digits");
  }
  // One after the other.
  void Hashes(std::string_view key, std::vector<uint64_t>& out) const {
    std::string text;
    Read(key, text);
    for (size_t i = 0; i < text.size(); i += kHashDigits) {
      if (!ParseHash(std::string_view(text).substr(i, kHashDigits), out.emplace_back())) {
        Fail(key, "16 hexadecimal digits for each checksum");
      }
    }
  }
  void State(std::string_view key, StepState& out) const {
    std::string text;
    Read(key, text);
    auto bytes = std::as_writable_bytes(std::span(&out, 1));
    if (text.size() != 2 * bytes.size()) Fail(key, "256 hexadecimal digits");
    for (size_t i = 0; i < bytes.size(); ++i) {
      uint8_t value = 0;
      const char* digits = text.data() + 2 * i;
      if (std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) {
        Fail(key, "256 hexadecimal digits");
      }
      bytes[i] = std::byte{value};
    }
  }
  const Json& Object(std::string_view key) const {
    if (!Get(key).is_object()) Fail(key, "an object");
    return Get(key);
  }
  const Json& Array(std::string_view key) const {
    if (!Get(key).is_array()) Fail(key, "an array");
    return Get(key);
  }

 private:
  const Json& Get(std::string_view key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) ThrowUsage("{}: missing", Where(key));
    return *found;
  }
  [[noreturn]] void Fail(std::string_view key, const char* expected) const {
    ThrowUsage("{}: must be {}", Where(key), expected);
  }

  const Json& json_;
  const std::filesystem::path& file_;
};

Json ModelJson(const ModelSpec& model) {
  Json json;
  ForEachWrittenField(model, [&]<typename T>(const ModelField& field, const T& value) {
    if constexpr (std::is_same_v<T, RotaryScaling>) {
      json[field.key] = RotaryScalingName(value);
    } else if constexpr (!std::is_same_v<T, const ModelFamily*>) {
      json[field.key] = value;
    } else if (!FamilyInFile(*value).empty()) {
      json[field.key] = FamilyInFile(*value);
    }
  });
  return json;
}

ModelSpec ReadModel(const Reader& reader) {
  ModelSpec model;
  ForEachField(model, [&]<typename T>(const ModelField& field, T& value) {
    if (field.optional && !reader.Has(field.key)) return;
    if constexpr (std::is_same_v<T, RotaryScaling>) {
      std::string name;
      reader.Read(field.key, name);
      const std::optional<RotaryScaling> found = RotaryScalingNamed(name);
      if (!found) {
        ThrowUsage("{}: {} is not allowed; use linear, llama3 or yarn", reader.Where(field.key),
                   Printable(name));
      }
      value = *found;
    } else if constexpr (!std::is_same_v<T, const ModelFamily*>) {
      reader.Read(field.key, value);
    } else {
      std::string name;
      if (reader.Has(field.key)) reader.Read(field.key, name);
      value = FamilyFromFile(name, reader.Where(field.key));
    }
  });
  return model;
}

}  // namespace

std::string FormatCheckpointMeta(const CheckpointMeta& meta) {
  Json files = Json::array();
  for (const CheckpointFile& file : meta.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.bytes},
                     {"header_hash", fmt::format("{:016x}", file.header_hash)},
                     {"checksums", HexHashes(file.checksums)}});
  }
  Json run = Json::object();
  for (const auto& [key, value] : meta.run) run[key] = value;
  Json json = {{"schema", kCheckpointSchema},
               {"serial", meta.serial},
               {"step", meta.step},
               {"samples_consumed", meta.samples_consumed},
               {"seed", meta.seed},
               {"world_size", meta.world_size},
               {"train_tokens", meta.train_tokens},
               {"state", HexState(meta.state)},
               {"model", ModelJson(meta.model)},
               {"run", run}};
  if (const auto& v = meta.validation) {
    json["validation"] = {{"data", v->data}, {"step", v->step}, {"worse", v->worse}};
    if (v->any_finite) {
      json["validation"]["best_step"] = v->best_step;
      json["validation"]["best_loss"] = v->best_loss;
    }
  }
  json["files"] = files;
  // Names may come from paths that are not UTF-8.
  return SealJson(json.dump(2, ' ', false, Json::error_handler_t::replace));
}

std::string SealJson(std::string_view object) {
  constexpr std::string_view kEnd = "\n}";
  ZEROPLAN_CHECK(object.ends_with(kEnd));
  const std::string_view body = object.substr(0, object.size() - kEnd.size());
  return fmt::format("{}{}{}\"{}\n", body, kSeal, DigestText(body), kEnd);
}

CheckpointMeta ReadCheckpointMeta(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "meta.json";
  const std::string text = ReadTextFile(path);
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    ThrowUsage("{}: not valid JSON: {}", path.string(), Printable(error.what()));
  }
  const Reader reader(json, path);
  std::string schema;
  reader.Read("schema", schema);
  if (schema != kCheckpointSchema) {
    ThrowUsage("{}: schema: '{}', expected '{}': saved by another version of zeroplan?",
               path.string(), Printable(schema), kCheckpointSchema);
  }
  CheckSeal(text, path);
  CheckpointMeta meta;
  reader.Read("serial", meta.serial);
  reader.Read("step", meta.step);
  reader.Read("samples_consumed", meta.samples_consumed);
  reader.Read("seed", meta.seed);
  reader.Read("world_size", meta.world_size);
  reader.Read("train_tokens", meta.train_tokens);
  reader.State("state", meta.state);
  meta.model = ReadModel(Reader(reader.Object("model"), path));
  const Json& run = reader.Object("run");
  const Reader run_reader(run, path);
  for (const auto& [key, value] : run.items()) run_reader.Read(key.c_str(), meta.run[key]);
  if (reader.Has("validation")) {
    ValidationRecord& record = meta.validation.emplace();
    const Reader validation(reader.Object("validation"), path);
    validation.Read("data", record.data);
    validation.Read("step", record.step);
    validation.Read("worse", record.worse);
    record.any_finite = validation.Has("best_loss");
    if (record.any_finite) {
      validation.Read("best_step", record.best_step);
      validation.Read("best_loss", record.best_loss);
    }
  }
  for (const Json& item : reader.Array("files")) {
    const Reader file_reader(item, path);
    CheckpointFile& file = meta.files.emplace_back();
    file_reader.Read("name", file.name);
    file_reader.Read("bytes", file.bytes);
    file_reader.Hash("header_hash", file.header_hash);
    file_reader.Hashes("checksums", file.checksums);
    if (file.name.empty() || std::filesystem::path(file.name).filename() != file.name) {
      ThrowUsage("{}: files: '{}' is not a file name", path.string(), Printable(file.name));
    }
  }
  return meta;
}

void CheckSameShape(const ModelSpec& saved, const ModelSpec& wanted, std::string_view source) {
  ForEachField(saved, wanted, [&](const ModelField& field, const auto& got, const auto& expected) {
    if (!field.shape || IsComputed(field, wanted) || got == expected) return;
    ThrowUsage(
        "{}: was saved for a model ('{}') with {} {}, the one to resume has {}; give the model it "
        "was saved with",
        source, Printable(saved.name), field.words, FieldText(got), FieldText(expected));
  });
}

std::string DigestText(std::string_view text) {
  return fmt::format("{:016x}", HashBytes(std::as_bytes(std::span(text))));
}

}  // namespace zeroplan
