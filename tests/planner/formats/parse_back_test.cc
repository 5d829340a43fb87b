// What is written for other programs, with names as odd as files and fields may have them, read by
// the formats' own libraries: Python's yaml, tomllib, json and ast, and bash.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/families/load_model.h"
#include "planner/formats/config_format.h"
#include "planner/formats/format_parts.h"
#include "planner/formats/launch_files.h"
#include "planner/runtimes/runtimes.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

using NamesJson = nlohmann::json;

// Line breaks of YAML's (U+0085, U+2028, U+2029), marks, quotes, and what formats and shells take
// for their own.
const std::vector<std::string>& OddNames() {
  static const std::vector<std::string> names = {"plain",
                                                 "a\u2028b: 1",
                                                 "a\u2029- b",
                                                 "a\u0085b: [1",
                                                 "\ufeffa",
                                                 "a\ufffe",
                                                 "a\uffff",
                                                 "a\x7f"
                                                 "b",
                                                 "a\nb: 1\n---\n",
                                                 "a\tb\r\nc",
                                                 "a\x01\x1b[31m",
                                                 "\u202egnp.exe",
                                                 "\u00e9\u4e2d\U0001f600\U0001fffe",
                                                 "a: b # c",
                                                 "'; touch x; '",
                                                 "\"a\" \\ b\\",
                                                 "$HOME `id` $(id) ${X}",
                                                 "- a",
                                                 "!!python/object:os.system",
                                                 "*a &b",
                                                 "{a: b}",
                                                 "null",
                                                 "~",
                                                 "1e3",
                                                 "a\\x41\\u2028"};
  return names;
}

constexpr const char* kReader = R"(
import ast, json, subprocess, sys
cases = json.load(open(sys.argv[1], encoding="utf-8"))
try:
    import yaml
except ImportError:
    yaml = None
    print("no PyYAML")
try:
    import tomllib
except ImportError:
    tomllib = None
    print("no tomllib")
def words_of(text, program):
    shell = program + """() { printf '%s\\0' "$@"; }\n""" + text.replace("exec ", "")
    done = subprocess.run(["bash", "-c", shell], capture_output=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    assert done.returncode == 0, done
    return done.stdout.split(b"\0")[:-1]
def after(words, option):
    return words[words.index(option.encode()) + 1].decode()
for case in cases:
    name = case["name"]
    assert json.loads(case["quoted"]) == name, name
    assert ast.literal_eval(case["quoted"]) == name, name
    for lines in case["scripts"]:
        ast.parse(lines)
    if tomllib:
        assert tomllib.loads("k = " + case["quoted"])["k"] == name, name
        titan = tomllib.loads(case["torchtitan"])
        assert titan["job"]["description"] == case["printed"] + ", FSDP2, planned by zeroplan", titan
        assert titan["training"]["seq_len"] == 2048, titan
    if yaml:
        assert yaml.safe_load("k: " + case["quoted"])["k"] == name, name
        assert yaml.safe_load("- " + case["quoted"] + " # c") == [name], name
        for text in case["accelerate"]:
            config = yaml.safe_load(text)
            assert config["num_processes"] == 8, config
            if "deepspeed_config" in config:
                assert config["deepspeed_config"]["deepspeed_config_file"] == case["beside"], config
        task = yaml.safe_load(case["skypilot"])
        assert set(task) == {"name", "num_nodes", "resources", "envs", "file_mounts", "setup", "run"}, task
        assert task["file_mounts"]["~/model"] == name, task
        run = task["run"].splitlines()
        (train,) = [line for line in run if line.startswith("zeroplan train")]
        assert after(words_of(train.rstrip("& "), "zeroplan"), "--map") == "text=" + name, train
        (job,) = yaml.safe_load_all(case["kubernetes"])
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert set(container) == {"name", "image", "workingDir", "command", "args", "resources",
                                  "securityContext", "volumeMounts"}, container
        words = words_of(container["args"][0], "zeroplan")
        assert after(words, "--map") == "text=" + name, words
        assert after(words, "--save") == "out", words
)";

FormatRequest OddRequest(ConfigFormat format, const Runtime& runtime, const std::string& name) {
  FormatRequest request;
  request.format = format;
  request.runtime = &runtime;
  request.runtime_name = runtime.version();
  request.model = LoadModel("llama3.1-8b");
  request.model.name = name;
  request.setup.batch = {4, 2, 8, 2048};
  request.setup.zero.stage = 2;
  request.setup.zero.reduce_bucket_elements = 200'000'000;
  request.setup.precision.fp32_reduction = format == ConfigFormat::kTorchtitan;
  request.cluster = {8, 8};
  request.file = name + ".yaml";
  return request;
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST_CASE("formats: what is written holds the same names when its own library reads it") {
  NamesJson cases = NamesJson::array();
  for (const std::string& name : OddNames()) {
    const WrittenConfig deepspeed =
        WriteFormat(OddRequest(ConfigFormat::kAccelerate, DeepSpeedRuntime(), name));
    const WrittenConfig fsdp2 =
        WriteFormat(OddRequest(ConfigFormat::kAccelerate, Fsdp2Runtime(), name));
    const WrittenConfig titan =
        WriteFormat(OddRequest(ConfigFormat::kTorchtitan, Fsdp2Runtime(), name));
    const FormatRequest plain = OddRequest(ConfigFormat::kDeepSpeed, DeepSpeedRuntime(), name);
    LaunchRequest launch = {.format = ConfigFormat::kSkyPilot,
                            .model = name,
                            .cluster = {8, 8},
                            .gpu_name = "NVIDIA H100 SXM",
                            .file = "run.yaml",
                            .plan_file = "plan.json",
                            .step_seconds = 3};
    launch.batch = plain.setup.batch;
    launch.model_folder = name;
    launch.data_options = "--map " + BashWord("text=" + name);
    const std::string sky = WriteLaunchFile(launch).files.at(0).text;
    launch.format = ConfigFormat::kKubernetes;
    launch.gpu_name = name;
    cases.push_back({{"name", name},
                     {"printed", PrintableText(name, 80)},
                     {"quoted", Quoted(name)},
                     {"beside", DeepSpeedFileBeside(name + ".yaml")},
                     {"scripts", {Joined(deepspeed.script), Joined(OptimizerScript(plain))}},
                     {"accelerate", {deepspeed.files.at(0).text, fsdp2.files.at(0).text}},
                     {"torchtitan", titan.files.at(0).text},
                     {"skypilot", sky},
                     {"kubernetes", WriteLaunchFile(launch).files.at(0).text}});
  }
  if (std::system("python3 -c 'import json' 2> /dev/null") != 0) {
    MESSAGE("no python3: nothing reads what was written");
    return;
  }
  const TempDir folder;
  std::ofstream(folder.path() + "/cases.json") << cases.dump();
  std::ofstream(folder.path() + "/read.py") << kReader;
  const std::string command =
      "python3 " + folder.path() + "/read.py " + folder.path() + "/cases.json >&2";
  CHECK(std::system(command.c_str()) == 0);
}

TEST_CASE("formats: names that no file can hold are refused") {
  CHECK(Has(ErrorOf(ExitCode::kUsage, [] { Quoted("a\xff"); }), wording::kXffIsNotUtf));
  for (const ConfigFormat format : {ConfigFormat::kSkyPilot, ConfigFormat::kKubernetes}) {
    for (const char* name : {"a\u2028.yaml", "a\u0085.yaml", "a\n.yaml", "a\u202e.yaml"}) {
      CAPTURE(name);
      CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { CheckFormat(format, OwnExecutor(), name); }),
                "has a control character"));
    }
    CHECK_NOTHROW(CheckFormat(format, OwnExecutor(), "\u00e9 '\U0001f600.yaml"));
  }
}

}  // namespace
}  // namespace zeroplan
