// Rules of the source tree, read off its files: who may include whom (docs: the folder table), how
// long a file may be, where a model family may be named and runtimes told apart. Link targets
// refuse most breaches of the first already, but not system headers, and not what only builds with
// a CUDA toolkit.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/families/load_model.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr std::ptrdiff_t kMostLines = 600;

struct FolderRule {
  std::string_view folder;
  std::vector<std::string_view> may_include;  // besides itself
};

const std::vector<FolderRule>& FolderRules() {
  static const auto* rules = new std::vector<FolderRule>{
      {"core", {}},
      {"hwprofiles", {"core"}},
      {"machine", {"core", "hwprofiles"}},
      {"text", {"core"}},
      {"cost_models", {"core", "hwprofiles"}},
      {"planner", {"core", "hwprofiles", "cost_models"}},
      {"reader", {"core", "planner", "text"}},
      {"executor", {"core", "hwprofiles", "machine", "text"}},
      {"cli",
       {"core", "hwprofiles", "machine", "cost_models", "planner", "text", "reader", "executor"}},
      {"library", {"core", "hwprofiles", "machine", "cost_models", "planner", "reader"}}};
  return *rules;
}

bool OneOf(std::string_view text, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

std::string_view TopFolder(std::string_view path) { return path.substr(0, path.find('/')); }

bool IsDeviceHeader(std::string_view header) {
  for (std::string_view prefix :
       {"cuda", "cublas", "cudnn", "curand", "cuComplex", "nccl", "nvtx", "nvml", "nvToolsExt",
        "nvrtc", "cooperative_groups", "mma.h", "cub/", "thrust/", "cute/", "cutlass/"}) {
    if (header.starts_with(prefix)) return true;
  }
  return false;
}

// The header that a line includes, behind its opening quote or bracket; empty: it includes none.
std::string_view Included(std::string_view line) {
  const size_t hash = line.find_first_not_of(" \t");
  if (hash == std::string_view::npos || line[hash] != '#') return "";
  const size_t word = line.find_first_not_of(" \t", hash + 1);
  if (word == std::string_view::npos || !line.substr(word).starts_with("include")) return "";
  const size_t open = line.find_first_of("<\"", word);
  if (open == std::string_view::npos) return line.substr(word);
  return line.substr(open, line.find_first_of(">\"", open + 1) - open);
}

// Describes the breach in `line` of the file `path` (from the root of the tree); empty: no breach.
std::string BrokenRule(const std::string& path, std::string_view line) {
  const std::string_view included = Included(line);
  if (included.empty()) return "";
  if (!OneOf(included.substr(0, 1), {"<", "\""})) return "includes a macro";
  const std::string header(included.substr(1));
  const std::string_view folder = TopFolder(path);

  const bool may_use_device = folder == "executor" || path.starts_with("tests/executor/") ||
                              path.starts_with("benchmarks/cuda_");
  if (IsDeviceHeader(header) && !may_use_device) {
    return "includes " + header + ": CUDA and NCCL headers are for executor/ only";
  }
  const bool device_code = path.ends_with(".cu") || path.ends_with(".cuh");
  if (device_code && OneOf(TopFolder(header), {"fmt", "nlohmann", "CLI", "doctest"})) {
    return "includes " + header + ": not in device code";
  }
  const auto rule = std::find_if(FolderRules().begin(), FolderRules().end(),
                                 [&](const FolderRule& r) { return r.folder == folder; });
  if (rule == FolderRules().end()) return "";  // tests, benchmarks and examples see everything
  if (included[0] == '<') {
    if (header.starts_with("CLI/") && folder != "cli") return "includes " + header;
    if (header.starts_with("doctest")) return "includes " + header;
    const bool calculates = OneOf(folder, {"cost_models", "executor"});
    if (header.starts_with("Eigen/") && !calculates) return "includes " + header;
    return "";
  }
  const std::string_view other = TopFolder(header);
  if (other == folder) return "";
  const auto& allowed = rule->may_include;
  if (std::find(allowed.begin(), allowed.end(), other) != allowed.end()) return "";
  return "includes " + header;
}

// Files of the tree's own folders that hold code, from the root of the tree. Build folders, which
// may lie in the checkout, are not among them.
std::vector<std::string> SourceFiles(bool scripts) {
  const fs::path root = SourcePath("");
  std::vector<std::string> files;
  for (const char* folder :
       {"core", "hwprofiles", "machine", "cost_models", "planner", "text", "reader", "executor",
        "cli", "library", "python", "tests", "benchmarks", "examples", "scripts", "packaging"}) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string kind = entry.path().extension().string();
      const bool code = OneOf(kind, {".h", ".cc", ".cpp", ".hpp", ".inl", ".inc", ".cu", ".cuh"});
      const bool script = OneOf(kind, {".py", ".sh", ".cmake"});
      if (!entry.is_regular_file() || !(code || (scripts && script))) continue;
      files.push_back(entry.path().lexically_relative(root).generic_string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST_CASE("include rules: folders include only what lies below them") {
  const std::vector<std::string> files = SourceFiles(false);
  REQUIRE(files.size() > 100);  // an empty scan would pass everything
  for (const std::string& path : files) {
    std::ifstream file(SourcePath(path));
    REQUIRE_MESSAGE(file.good(), path);
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      const std::string broken = BrokenRule(path, line);
      if (!broken.empty()) FAIL_CHECK(path << ":" << number << " " << broken);
    }
  }
}

TEST_CASE("include rules: a breach is seen") {
  const auto broken = [](const char* path, const char* line) {
    return !BrokenRule(path, line).empty();
  };
  CHECK(broken("core/a.h", "#include \"hwprofiles/b.h\""));
  CHECK(broken("hwprofiles/a.cc", "#include \"cost_models/b.h\""));
  CHECK(broken("cost_models/a.cc", "#include \"executor/engine/engine.h\""));
  CHECK(broken("cost_models/a.cc", "#include \"planner/b.h\""));
  CHECK(broken("executor/a/b.cc", "  #  include \"cost_models/b.h\"  // why"));
  CHECK(broken("executor/a/b.cc", "#include \"planner/b.h\""));
  CHECK(broken("planner/a.cc", "#include \"executor/b.h\""));
  CHECK(broken("planner/a.cc", "#include \"cli/b.h\""));
  CHECK(broken("core/a.cc", "#include \"tests/b.h\""));
  CHECK(broken("core/a.cc", "#include \"../core/b.h\""));
  CHECK(broken("core/a.cc", "#include <cuda_runtime.h>"));
  CHECK(broken("tests/planner/a.cc", "#include <nccl.h>"));
  CHECK(broken("executor/kernels/a.cu", "#include <fmt/format.h>"));
  CHECK(broken("planner/a.cc", "#include <CLI/CLI.hpp>"));

  CHECK_FALSE(broken("cost_models/a.cc", "#include \"hwprofiles/b.h\""));
  CHECK_FALSE(broken("planner/a.cc", "#include \"cost_models/b.h\""));
  CHECK_FALSE(broken("cli/a.cc", "#include \"executor/b.h\""));
  CHECK_FALSE(broken("executor/a.cc", "#include <cuda_runtime.h>"));
  CHECK_FALSE(broken("core/a.cc", "// #include \"planner/b.h\""));
  CHECK_FALSE(broken("core/a.cc", "#include <vector>"));
}

using FolderGraph = std::map<std::string, std::set<std::string>>;  // folder: what it includes

std::string_view Folder(std::string_view path) { return path.substr(0, path.rfind('/')); }

// Without folders that are in no circle: each that is left is in one, or lies between two.
FolderGraph Circles(FolderGraph graph) {
  const auto without_ends = [](FolderGraph left) {
    for (bool fewer = true; fewer;) {
      fewer = false;
      for (auto folder = left.begin(); folder != left.end();) {
        std::erase_if(folder->second, [&](const std::string& other) { return !left.count(other); });
        const bool free = folder->second.empty();
        fewer = fewer || free;
        folder = free ? left.erase(folder) : std::next(folder);
      }
    }
    return left;
  };
  // Removes folders that include no circle, then, by the same steps on the reversed graph, folders
  // that no circle includes.
  for (int side = 0; side < 2; ++side) {
    FolderGraph turned;
    for (const auto& [folder, others] : without_ends(std::move(graph))) {
      for (const std::string& other : others) turned[other].insert(folder);
    }
    graph = std::move(turned);
  }
  return graph;
}

// One circle ("a > b > a"), or "".
std::string FindCircle(const FolderGraph& graph) {
  const FolderGraph left = Circles(graph);
  if (left.empty()) return "";
  // Every folder that is left includes another such; following them comes back.
  std::vector<std::string> path = {left.begin()->first};
  while (true) {
    const std::string next = *left.at(path.back()).begin();
    const auto seen = std::find(path.begin(), path.end(), next);
    if (seen == path.end()) {
      path.push_back(next);
      continue;
    }
    std::string circle;
    for (auto i = seen; i != path.end(); ++i) circle += *i + " > ";
    return circle + next;
  }
}

// Folders that still are in a circle with others of their set; to go.
const std::vector<std::set<std::string>>& CirclesToGo() {
  static const auto* circles = new std::vector<std::set<std::string>>();
  return *circles;
}

TEST_CASE("include rules: folders do not include one another in a circle") {
  FolderGraph graph;
  for (const std::string& path : SourceFiles(false)) {
    const auto is_of = [](std::string_view file) {
      return [file](const FolderRule& rule) { return rule.folder == TopFolder(file); };
    };
    if (std::none_of(FolderRules().begin(), FolderRules().end(), is_of(path))) continue;
    std::ifstream file(SourcePath(path));
    for (std::string line; std::getline(file, line);) {
      const std::string_view header = Included(line);
      if (!header.starts_with('"')) continue;
      const std::string from(Folder(path)), to(Folder(header.substr(1)));
      const bool to_go = std::any_of(CirclesToGo().begin(), CirclesToGo().end(),
                                     [&](const std::set<std::string>& circle) {
                                       return circle.count(from) && circle.count(to);
                                     });
      if (from != to && !to_go) graph[from].insert(to);
    }
  }
  REQUIRE(graph.count("core/lowering"));  // an empty scan would pass everything
  CHECK(FindCircle(graph) == "");
}

TEST_CASE("include rules: a circle is seen") {
  FolderGraph graph = {{"lowering", {"program", "config"}}, {"program", {"config"}}};
  CHECK(FindCircle(graph) == "");
  graph["config"] = {"lowering"};
  CHECK(FindCircle(graph) == "config > lowering > config");
  graph = {{"top", {"a"}}, {"a", {"b"}}, {"b", {"c", "end"}}, {"c", {"a"}}};
  CHECK(FindCircle(graph) == "a > b > c > a");
}

// A line's code: no comment, as far as one line shows it.
std::string_view Code(std::string_view line) { return line.substr(0, line.find("//")); }

// Files besides core/families that may have a family's name as a whole string, and why.
constexpr std::pair<std::string_view, std::string_view> kNamesFamilies[] = {
    {"planner/formats/torchtitan.cc", "torchtitan's own names of its models"},
    {"planner/runtimes/planned/planned_config.cc",
     "the language models that models which see build on"},
    {"planner/runtimes/planned/text_types.cc", "the same"},
    {"planner/runtimes/planned/published_models.cc", "config.json of a model that sees"},
    {"executor/measure/cuda/measure_runtime.cc", "the preset gpt2"},
    {"executor/measure/measure_cpu_ranks.cc", "the preset gpt2"},
};

TEST_CASE("no model family is named outside core/families") {
  std::vector<std::string> quoted;
  for (const ModelFamily* family : ModelFamilies())
    quoted.push_back('"' + std::string(family->name()) + '"');
  REQUIRE(quoted.size() >= 5);
  for (const std::string& path : SourceFiles(false)) {
    const bool product = std::any_of(FolderRules().begin(), FolderRules().end(),
                                     [&](const auto& r) { return r.folder == TopFolder(path); });
    const bool may = std::any_of(std::begin(kNamesFamilies), std::end(kNamesFamilies),
                                 [&](const auto& file) { return file.first == path; });
    if (!product || may || path.starts_with("core/families/")) continue;
    std::ifstream file(SourcePath(path));
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      for (const std::string& name : quoted) {
        if (Code(line).find(name) != std::string_view::npos) {
          FAIL_CHECK(path << ":" << number << " names the family " << name);
        }
      }
    }
  }
}

// Files outside planner/runtimes that may call has_programs(), and what they use step programs for.
constexpr std::pair<std::string_view, std::string_view> kAsksForPrograms[] = {
    {"planner/runtime.h", "the declaration"},
    {"planner/page/estimate_page.cc", "the picture of a step's memory"},
    {"planner/page/plan_page.cc", "the picture of a step's memory"},
    {"planner/plan/plan.cc", "the choice, with what was left to auto"},
    {"planner/request/plan_answer.cc", "notes on kernels, saves and sums"},
    {"planner/request/resolved.cc", "notes on kernels and sums"},
    {"cli/estimate.cc", "--trace"},
    {"cli/plan/plan.cc", "--trace, --explain and what a search lowered"},
};

// Describes the breach in `line` of the file `path`: it tests which runtime it has, instead of a
// fact of RuntimeFacts. Empty: no breach.
std::string AskedOfRuntimes(std::string_view path, std::string_view line) {
  const std::string_view code = Code(line);
  const auto has = [&](std::string_view part) { return code.find(part) != code.npos; };
  const bool may = std::any_of(std::begin(kAsksForPrograms), std::end(kAsksForPrograms),
                               [&](const auto& file) { return file.first == path; });
  if (has("has_programs()") && !may && !path.starts_with("planner/runtimes/")) {
    return "asks has_programs()";
  }
  if (has("key()") && (has("==") || has("!=")) && path != "planner/runtimes/runtime.cc") {
    return "compares key()";
  }
  return "";
}

TEST_CASE("no file asks which runtime it has") {
  size_t asks = 0;
  for (const std::string& path : SourceFiles(false)) {
    const bool product = std::any_of(FolderRules().begin(), FolderRules().end(),
                                     [&](const auto& r) { return r.folder == TopFolder(path); });
    if (!product) continue;
    std::ifstream file(SourcePath(path));
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      const std::string asked = AskedOfRuntimes(path, line);
      if (!asked.empty()) FAIL_CHECK(path << ":" << number << " " << asked);
      const bool declares = path.starts_with("planner/runtime");
      if (!declares && Code(line).find("has_programs()") != std::string_view::npos) ++asks;
    }
  }
  REQUIRE(asks > 0);  // an empty scan would pass everything
  CHECK(asks <= 10);

  CHECK(AskedOfRuntimes("planner/a.cc", "  if (runtime.has_programs()) {") != "");
  CHECK(AskedOfRuntimes("planner/formats/a.cc", "return runtime->key() == \"ddp\";") != "");
  CHECK(AskedOfRuntimes("planner/plan/plan.cc", "  if (runtime.has_programs()) {") == "");
  CHECK(AskedOfRuntimes("planner/a.cc", "  // as has_programs() said") == "");
}

TEST_CASE("no source file is longer than 600 lines") {
  for (const std::string& path : SourceFiles(true)) {
    std::ifstream file(SourcePath(path));
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    CAPTURE(path);
    CHECK(std::count(text.begin(), text.end(), '\n') <= kMostLines);
  }
}

}  // namespace
}  // namespace zeroplan
