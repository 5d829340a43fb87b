// The fields of a request, each with its name, its values and its help. This is the one list: a
// command makes options of it (cli/common/command.h), the library makes arguments of it.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/request/request.h"

namespace zeroplan {

// Returns known names for a value, such as presets or profiles. Shells complete them. Called when
// needed.
using KnownNames = std::vector<std::string> (*)();
std::vector<std::string> KnownModels();
std::vector<std::string> KnownFamilies();
// Profiles and networks: the names that 'hw show' accepts.
std::vector<std::string> KnownProfilesAndNetworks();

// A kind of file that zeroplan writes. An output may replace a file of that kind, but no other
// file.
struct OutputKind {
  const char* what;                     // "a trace"
  std::vector<std::string_view> marks;  // each such file has one of them in its first MiB
};

// The use of a value that is a path (cli/common/command_files.h).
struct PathRole {
  enum class Use : uint8_t {
    kRead,       // a file, or files of a folder
    kReadBelow,  // a file, or all files below a folder
    kFill,       // a folder in which files are made
    kWrite       // a file of `kind`
  };
  Use use = Use::kRead;
  const OutputKind* kind = nullptr;

  static PathRole Writes(const OutputKind& kind) { return {Use::kWrite, &kind}; }
};

struct FieldInfo {
  const char* group;  // heading in the help
  std::string name;   // "⟦gpus⟧"; for a command's own options "--format" or "-o,--out"
  std::string type;   // the value's placeholder in the help: "COUNT"; "" for a flag
  std::string help;   // includes unit and default
  // Fields whose file decides this one. The field is refused if one of them is given.
  std::vector<std::string_view> decided_by = {};
  bool may_be_empty = false;  // else an empty text is refused
  // The value of the field if it is given without one; null: it must have a value.
  const char* alone = nullptr;
  // The word in the help for a value that a command line may give without the field's name; null:
  // the name is needed.
  const char* word = nullptr;
  PathRole path = {};  // set for a value that is a path
};

// A field that a sink received, and the text given for it.
struct AddedField {
  FieldInfo info;
  std::string name;  // for messages: "--out" of "-o,--out"
  // Converts the text to a value. Throws Error(kUsage) that names field, value and what is allowed.
  std::function<void(const std::string& text, std::string_view name)> take;
  KnownNames known = nullptr;
  bool several = false;  // may be given several times, with a value each
  bool given = false;
  std::string text = {};  // empty if the field is given without a value
};

// Reads the given fields in the order in which they were added. Before that it refuses fields that
// a config or a plan decides.
void ReadFields(const std::deque<AddedField>& fields);

// Receives fields. References to values must stay valid until the fields are read.
class FieldSink {
 public:
  virtual ~FieldSink() = default;
  virtual void Take(AddedField field) = 0;
  // By default adds a field that is true if it is given without a value.
  virtual void Flag(const char* group, const std::string& name, const std::string& help,
                    bool& value);
  // Adds a field for several texts. By default the field may be given several times.
  virtual void Texts(const FieldInfo& info, std::vector<std::string>& values);

  // Adds a field for a text. The value stays "" if the field is not given.
  void Text(const FieldInfo& info, std::string& value, KnownNames known = nullptr);
  // Adds a field whose value `parse(text, name)` returns. `parse` throws Error(kUsage) that names
  // the field, the value and what is allowed (parse.h).
  template <typename T, typename Parse>
  void Value(const FieldInfo& info, Given<T>& value, Parse parse) {
    Take({info, "", [&value, parse](const std::string& text, std::string_view name) {
            value.emplace(parse(text, name));
            value.text = text;
          }});
  }
};

// Adds all fields of an estimate, and of a plan.
void AddEstimateFields(FieldSink& sink, Request& request);
void AddPlanFields(FieldSink& sink, PlanRequest& request);
// Adds all fields that describe one run of a program.
void AddRunFields(FieldSink& sink, Request& request);

// The functions below add groups of those fields.
// `compared`: receives several tuning methods if the command can compare them; else null.
void AddModelFields(FieldSink& sink, ModelFields& fields,
                    Given<std::vector<TuningMethod>>* compared = nullptr);
// `machines`: receives several machines if the command can compare them; else null.
void AddClusterFields(FieldSink& sink, Request& request, MachineFields* machines = nullptr);
void AddPinnedLimitField(FieldSink& sink, const char* group, ClusterFields& fields);
// Adds the memory reserves, in the help's group `group`.
void AddReserveFields(FieldSink& sink, const char* group, ClusterFields& fields);
// Adds the settings of one group (core/settings/setting_rows.inc).
void AddSettings(FieldSink& sink, AskedSettings& asked, SettingGroup group, OptionsOf of);
void AddDeterministicField(FieldSink& sink, AskedSettings& asked);

// The result of setting a field from another source: it was set, it already had the same value, or
// the user gave another value.
enum class Taken : uint8_t { kTaken, kSame, kGivenOtherwise };
// Sets the setting by `text`, as an option does, unless it is given. `where` names the source.
// Throws Error(kUsage) that names the source if the setting does not accept the text.
Taken TakeSetting(const SettingRow& row, const std::string& text, const std::string& where,
                  AskedSettings& asked);
// Adds the settings of stage, offload and recompute, and the config that may set them.
void AddChoiceFields(FieldSink& sink, Request& request, OptionsOf of);

}  // namespace zeroplan
