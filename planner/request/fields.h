// The fields of a request, each with its name, its values and its help. There is one list: a
// command makes options of it (cli/common/command.h), the library arguments.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/request/request.h"

namespace zeroplan {

// Names that a value may have and that shells complete: presets, profiles. Called when needed.
using KnownNames = std::vector<std::string> (*)();
std::vector<std::string> KnownModels();
std::vector<std::string> KnownFamilies();
// Profiles, and networks: what 'hw show' takes.
std::vector<std::string> KnownProfilesAndNetworks();

// A kind of file that zeroplan writes. One of that kind may be replaced; what is something else is
// not.
struct OutputKind {
  const char* what;                     // "a trace"
  std::vector<std::string_view> marks;  // each such file has one of them in its first MiB
};

// What a value leads to that is a path (cli/common/command_files.h).
struct PathRole {
  enum class Use : uint8_t {
    kRead,       // a file, or files of a folder
    kReadBelow,  // a file, or all that lie below a folder
    kFill,       // a folder in which files are made
    kWrite       // a file of `kind`
  };
  Use use = Use::kRead;
  const OutputKind* kind = nullptr;

  static PathRole Writes(const OutputKind& kind) { return {Use::kWrite, &kind}; }
};

struct FieldInfo {
  const char* group;  // heading in the help
  std::string name;   // "⟦gpus⟧"; of a command's own options "--format", or "-o,--out"
  std::string type;   // what stands for the value in the help: "COUNT"; "" for a flag
  std::string help;   // says unit and default
  // Fields whose file decides this one: beside them it is refused.
  std::vector<std::string_view> decided_by = {};
  bool may_be_empty = false;  // else an empty text is refused
  // The value of the field where it is given without one; null: it must have a value.
  const char* alone = nullptr;
  // On a command line the value may also stand without the field's name, as a word that help calls
  // so; null: it may not.
  const char* word = nullptr;
  PathRole path = {};  // of a value that is a path
};

// A field that was added, and what it was given as.
struct AddedField {
  FieldInfo info;
  std::string name;  // for messages: "--out" of "-o,--out"
  // Makes the text a value. Throws Error(kUsage) that names field, value and what is allowed.
  std::function<void(const std::string& text, std::string_view name)> take;
  KnownNames known = nullptr;
  bool several = false;  // may be given several times, with a value each
  bool given = false;
  std::string text = {};  // empty, though given: without a value
};

// Reads the fields that were given, in the order in which they were added. Fields that a config or
// a plan decides are refused first.
void ReadFields(const std::deque<AddedField>& fields);

// Takes fields. Values given as references must outlive the reading.
class FieldSink {
 public:
  virtual ~FieldSink() = default;
  virtual void Take(AddedField field) = 0;
  // By default a field that is true where it is given without a value.
  virtual void Flag(const char* group, const std::string& name, const std::string& help,
                    bool& value);
  // Several texts. By default a field that may be given several times.
  virtual void Texts(const FieldInfo& info, std::vector<std::string>& values);

  // A text, or "" where it is not given.
  void Text(const FieldInfo& info, std::string& value, KnownNames known = nullptr);
  // `parse(text, name)` gives the value, or throws Error(kUsage) that names both and what is
  // allowed (parse.h).
  template <typename T, typename Parse>
  void Value(const FieldInfo& info, Given<T>& value, Parse parse) {
    Take({info, "", [&value, parse](const std::string& text, std::string_view name) {
            value.emplace(parse(text, name));
            value.text = text;
          }});
  }
};

// All that an estimate, and a plan, can be asked.
void AddEstimateFields(FieldSink& sink, Request& request);
void AddPlanFields(FieldSink& sink, PlanRequest& request);
// All that tells one run of a program apart.
void AddRunFields(FieldSink& sink, Request& request);

// Groups of them.
// `compared`: takes several methods of tuning, where they may be asked about at once; else null.
void AddModelFields(FieldSink& sink, ModelFields& fields,
                    Given<std::vector<TuningMethod>>* compared = nullptr);
// `machines`: takes several, where they may be compared; else null.
void AddClusterFields(FieldSink& sink, Request& request, MachineFields* machines = nullptr);
void AddPinnedLimitField(FieldSink& sink, const char* group, ClusterFields& fields);
// What stays free, in the group `group`.
void AddReserveFields(FieldSink& sink, const char* group, ClusterFields& fields);
// The settings of one group (core/settings/setting_rows.inc).
void AddSettings(FieldSink& sink, AskedSettings& asked, SettingGroup group, OptionsOf of);
void AddDeterministicField(FieldSink& sink, AskedSettings& asked);

// What became of a text that another source has for a setting.
enum class Taken : uint8_t { kTaken, kSame, kGivenOtherwise };
// Sets the setting by `text`, as an option does, unless it is given. `where` names the source.
// Throws Error(kUsage) that names it for a text that the setting does not take.
Taken TakeSetting(const SettingRow& row, const std::string& text, const std::string& where,
                  AskedSettings& asked);
// The settings of stage, offload and recompute, and the config that may say them.
void AddChoiceFields(FieldSink& sink, Request& request, OptionsOf of);

}  // namespace zeroplan
