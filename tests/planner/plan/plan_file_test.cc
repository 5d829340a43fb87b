// A plan read back is the plan that was written, and nothing else is taken for one.
#include "planner/plan/plan_file.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/base/build_info.h"
#include "core/base/error.h"
#include "core/base/version.h"
#include "core/program/fingerprint.h"
#include "tests/planner/plan_fixture.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// What reading, and lowering where that succeeds, complains about; "" if nothing.
std::string Complaint(const std::string& text) {
  try {
    CheckedProgram(ReadPlan(text, "plan.json"));
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
}

std::string Edited(const std::string& text, const std::string& pointer, const Json& value) {
  Json json = Json::parse(text);
  json[Json::json_pointer(pointer)] = value;
  return json.dump(2);
}

TEST_CASE("plan: everything comes back, and the program is the planned one") {
  const Plan plan = SmallPlan();
  const std::string text = WritePlan(plan, kSmallConfig);
  const PlanFile back = ReadPlan(text, "plan.json");
  CHECK(back.model.name == "small");
  CHECK(back.model.layers == 2);
  CHECK(back.model.positions == 32);
  CHECK(back.model.layer_norm_eps == plan.model.layer_norm_eps);
  CHECK(back.model.init_std == plan.model.init_std);
  CHECK(back.cluster.hardware == plan.cluster.hardware);
  CHECK(back.cluster.gpu_capacity_bytes == 80'000'000'000);
  CHECK(back.cluster.host_capacity_bytes == 500'000'000'000);
  CHECK(!back.cluster.nvme_capacity_bytes);
  CHECK(!back.cluster.nvme_drives);
  CHECK(back.lower.backend == Backend::kCuda);
  CHECK(back.lower.logits_chunk_bytes == 8192);
  CHECK(back.lower.checkpoint_chunk_elements == 1 << 16);
  CHECK(back.setup.batch.grad_accum == 3);
  CHECK(back.setup.batch.world_size == 2);
  CHECK(back.setup.optimizer.lr == 0.003);
  CHECK(back.advice == plan.advice);
  CHECK(back.step_seconds == plan.choice.time.total_seconds);
  const Program program = CheckedProgram(back);
  CHECK(Fingerprint(program) == Fingerprint(Lower(plan.model, plan.setup, plan.lower)));
  const Json json = Json::parse(text);
  CHECK(json["schema"] == "zeroplan.plan/1");
  CHECK(json["predicted"]["gpu_bytes"]["total"] == plan.choice.footprint.gpu_total());
  CHECK(json["predicted"]["host_bytes"]["total"] == plan.choice.footprint.host.total());
  CHECK(json["search"]["candidates"] == 100);
}

TEST_CASE("plan: what attention within documents is timed by comes back, and is absent otherwise") {
  Plan plan = SmallPlan();
  const Json usual = Json::parse(WritePlan(plan, kSmallConfig))["lower"];
  CHECK(!usual.contains("own_documents"));
  CHECK(!usual.contains("visible_keys"));
  plan.lower.document_borders = plan.lower.own_documents = true;
  plan.lower.visible_keys = 31.25;
  plan.choice = EstimateProgram(Lower(plan.model, plan.setup, plan.lower), plan.cluster, nullptr);
  const std::string text = WritePlan(plan, kSmallConfig);
  const PlanFile back = ReadPlan(text, "plan.json");
  CHECK(back.lower.own_documents);
  CHECK(back.lower.visible_keys == 31.25);
  const Program program = Lower(plan.model, plan.setup, back.lower);
  CHECK(program.visible_keys == 31.25);
  // The time is another, the program is not.
  plan.lower.visible_keys = 0;
  CHECK(Fingerprint(program) == Fingerprint(Lower(plan.model, plan.setup, plan.lower)));
  plan.lower.own_documents = false;
  CHECK(Fingerprint(program) != Fingerprint(Lower(plan.model, plan.setup, plan.lower)));
}

TEST_CASE("plan: the setup goes through the DeepSpeed writer and back to the same program") {
  const HardwareProfile hardware = LoadProfile(std::string(kDefaultProfile));
  const CostModel costs(hardware, ClusterShape{2, 2});
  int written = 0;
  for (int stage : {0, 1, 2, 3}) {
    for (OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
      for (const RecomputeConfig& recompute :
           {kNoRecompute, kSelectiveRecompute, FullRecompute(), FullRecompute(2)}) {
        Plan plan = SmallPlan();
        plan.setup.zero.stage = stage;
        plan.setup.zero.offload_optimizer.device = stage > 0 ? device : OffloadDevice::kNone;
        plan.setup.zero.offload_param.device = stage == 3 ? device : OffloadDevice::kNone;
        plan.setup.zero.offload_optimizer.nvme_path = plan.setup.zero.offload_param.nvme_path =
            "/nvme";
        plan.setup.recompute = recompute;
        plan.setup.zero.prefetch_bucket_elements = 20'000;
        CAPTURE(stage);
        CAPTURE(RecomputeName(recompute));
        const Program program = Lower(plan.model, plan.setup, plan.lower);
        plan.choice = EstimateProgram(program, plan.cluster, &costs);
        const std::string text = WritePlan(plan);
        CHECK(Complaint(text) == "");
        CHECK(Fingerprint(CheckedProgram(ReadPlan(text, "plan.json"))) == Fingerprint(program));
        ++written;
      }
    }
  }
  CHECK(written == 4 * 3 * 4);
}

TEST_CASE("plan: unknown times are null") {
  Plan plan = SmallPlan();
  plan.choice.time = {};
  const std::string text = WritePlan(plan, kSmallConfig);
  CHECK(Json::parse(text)["predicted"]["step_seconds"]["total"].is_null());
  CHECK(!ReadPlan(text, "plan.json").step_seconds);
}

TEST_CASE("plan: a config that reads back as another choice is refused when writing") {
  const Plan plan = SmallPlan();
  std::string other = kSmallConfig;
  other.replace(other.find("\"stage\": 2"), 10, "\"stage\": 1");
  CHECK_THROWS_AS(WritePlan(plan, other), Error);
}

TEST_CASE("plan: schema and version") {
  const std::string text = WritePlan(SmallPlan(), kSmallConfig);
  CHECK(Complaint(text) == "");
  CHECK(Complaint(Edited(text, "/schema", "zeroplan.plan/2")).find("plan.json:2: schema: ") == 0);
  const std::string version = Complaint(Edited(text, "/zeroplan", "0.0.9"));
  CHECK(version.find("plan.json:3: zeroplan: made by zeroplan 0.0.9, this is " +
                     std::string(kVersion)) == 0);
  CHECK(version.find("plan again") != std::string::npos);
  CHECK(Complaint("{}").find("schema: is missing") != std::string::npos);
  CHECK(Complaint("[1]").find("plan.json:1: [...] is not allowed") == 0);
}

TEST_CASE("plan: what was edited and changes the program is refused") {
  const std::string text = WritePlan(SmallPlan(), kSmallConfig);
  const std::pair<const char*, Json> edits[] = {
      {"/model/layers", 3},
      {"/model/layer_norm_eps", 1e-6},
      {"/seq_len", 16},
      {"/cluster/gpus", 4},
      {"/lower/backend", "cpu"},
      {"/lower/logits_chunk_bytes", 16384},
      {"/lower/checkpoints", false},
      {"/config/train_micro_batch_size_per_gpu", 4},
      {"/config/gradient_accumulation_steps", 4},
      {"/config/zero_optimization/stage", 1},
      {"/config/zero_optimization/reduce_bucket_size", 5000},
      {"/fingerprint", "0000000000000000"},
  };
  for (const auto& [pointer, value] : edits) {
    CAPTURE(std::string(pointer));
    CHECK(Complaint(Edited(text, pointer, value))
              .find("plan.json: the program lowered from this plan differs") == 0);
  }
  CHECK(Complaint(Edited(text, "/predicted/gpu_bytes/params", 1)).find("plan.json: predicted") ==
        0);
  for (const char* bytes :
       {"/predicted/rank_arena_bytes/pinned", "/predicted/gpu_bytes/runtime",
        "/predicted/host_bytes/pageable", "/predicted/nvme_bytes", "/cluster/runtime_bytes"}) {
    CAPTURE(std::string(bytes));
    CHECK(Complaint(Edited(text, bytes, 1)).find("plan.json: predicted") == 0);
  }
  // What the program does not depend on may be changed.
  CHECK(Complaint(Edited(text, "/config/optimizer/params/lr", 0.5)) == "");
}

TEST_CASE("plan: messages name line, key and what is allowed") {
  const std::string text = WritePlan(SmallPlan(), kSmallConfig);
  const std::tuple<const char*, Json, const char*> edits[] = {
      {"/model/layers", "many", "model.layers: \"many\" is not allowed"},
      {"/model/layers", -1, "model.layers: -1"},
      {"/model/heads", 3, "n_head: 3 does not divide"},
      {"/model/depth", 3, "model.depth: is not a key of zeroplan.plan/1"},
      {"/seq_len", 64, "seq_len: 64 is not allowed; use a whole number from 1 to 32"},
      {"/lower/backend", "tpu", "lower.backend: \"tpu\" is not allowed; use cpu or cuda"},
      {"/lower/flash_attention", "perhaps", "lower.flash_attention"},
      {"/fingerprint", "abc", "fingerprint: \"abc\" is not allowed"},
      {"/predicted/step_seconds/total", "soon", "predicted.step_seconds.total: \"soon\""},
      {"/predicted/host_bytes/pinned", nullptr, "predicted.host_bytes.pinned: is missing"},
      {"/advice", "do it", "advice: \"do it\" is not allowed; use a list of strings"},
      {"/config", 5, "config: 5 is not allowed"},
      {"/search/judged", 0.5, "search.judged: 0.5"},
      {"/remarks", "x", "remarks: is not a key"},
  };
  for (const auto& [pointer, value, said] : edits) {
    CAPTURE(std::string(pointer));
    const std::string complaint = Complaint(Edited(text, pointer, value));
    CAPTURE(complaint);
    CHECK(complaint.find(said) != std::string::npos);
    CHECK(complaint.find("plan.json:") == 0);
  }
  for (const char* key : {"model", "seq_len", "cluster", "lower", "config", "fingerprint",
                          "predicted", "search", "advice", "zeroplan"}) {
    Json json = Json::parse(text);
    json.erase(key);
    CAPTURE(std::string(key));
    const std::string complaint = Complaint(json.dump());
    CHECK(complaint.find(key) != std::string::npos);
  }
}

TEST_CASE("plan: a plan names the build that made it, and is read whatever that was") {
  const std::string text = WritePlan(SmallPlan(), kSmallConfig);
  const Json build = Json::parse(text).at("build");
  const BuildInfo& here = GetBuildInfo();
  CHECK(build.at("compiler") == here.compiler);
  CHECK(build.at("commit") == (here.commit.empty() ? Json(nullptr) : Json(here.commit)));
  CHECK(build.at("cuda") == (here.cuda.empty() ? Json(nullptr) : Json(here.cuda)));
  CHECK(Complaint(Edited(text, "/build/commit", "0123456789ab")) == "");
}

TEST_CASE("plan: the config's own messages point into the plan file") {
  std::string text =
      Edited(WritePlan(SmallPlan(), kSmallConfig), "/config/zero_optimization/stage", 7);
  const size_t at = text.find("\"stage\": 7");
  const auto line = 1 + std::count(text.begin(), text.begin() + long(at), '\n');
  CHECK(Complaint(text).find(fmt::format("plan.json:{}: zero_optimization.stage: 7 ", line)) == 0);
}

}  // namespace
}  // namespace zeroplan
