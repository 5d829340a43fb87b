#include "planner/formats/launch_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/strings.h"
#include "core/base/version.h"
#include "planner/formats/format_parts.h"

namespace zeroplan {
namespace {

// Names of SkyPilot's catalogue, and the GPUs that they are. Source: skypilot-org/skypilot-catalog,
// catalogs/v8/common/accelerators.csv (AcceleratorName). "A100", "A100-80GB" and "H100" say nothing
// of the socket: clouds that have them offer SXM for the most part, and Lambda, RunPod and
// Paperspace PCIe too.
struct SkyGpu {
  std::string_view name, gpu;
};
constexpr SkyGpu kSkyGpus[] = {
    {"A10", "NVIDIA A10"},
    {"A100", "NVIDIA A100 SXM 40 GB"},
    {"A100", "NVIDIA A100 PCIe 40 GB"},
    {"A100-80GB", "NVIDIA A100 SXM 80 GB"},
    {"A100-80GB", "NVIDIA A100 PCIe 80 GB"},
    {"A10G", "NVIDIA A10G"},
    {"A40", "NVIDIA A40"},
    {"B200", "NVIDIA B200 SXM"},
    {"GH200", "NVIDIA GH200 (96 GB)"},
    {"H100", "NVIDIA H100 SXM"},
    {"H100", "NVIDIA H100 PCIe"},
    {"H100-NVL", "NVIDIA H100 NVL"},
    {"H200", "NVIDIA H200 SXM"},
    {"L4", "NVIDIA L4"},
    {"L40", "NVIDIA L40"},
    {"L40S", "NVIDIA L40S"},
    {"RTX3060", "NVIDIA GeForce RTX 3060"},
    {"RTX3070", "NVIDIA GeForce RTX 3070"},
    {"RTX3080", "NVIDIA GeForce RTX 3080"},
    {"RTX3090", "NVIDIA GeForce RTX 3090"},
    {"RTX4000-Ada", "NVIDIA RTX 4000 Ada Generation"},
    {"RTX4090", "NVIDIA GeForce RTX 4090"},
    {"RTX5090", "NVIDIA GeForce RTX 5090"},
    {"RTX6000-Ada", "NVIDIA RTX 6000 Ada Generation"},
    {"RTXA4000", "NVIDIA RTX A4000"},
    {"RTXA5000", "NVIDIA RTX A5000"},
    {"RTXA6000", "NVIDIA RTX A6000"},
    {"RTXPRO6000WS", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"},
    {"T4", "NVIDIA T4"},
    {"V100", "NVIDIA V100 SXM2 16 GB"},
    {"V100-32GB", "NVIDIA V100 SXM2 32 GB"}};

// `text`, of whole lines, with each of them indented by so many blanks.
std::string IndentedBy(size_t blanks, const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin) + 1;
    out += std::string(blanks, ' ') + text.substr(begin, end - begin);
    begin = end;
  }
  return out;
}

std::string Head(const LaunchRequest& request, std::string_view program) {
  return fmt::format("# {}: {}, {}; planned by zeroplan\n", program,
                     PrintableText(request.model, 80), StepText(request.batch));
}

// The command that trains, of which every node runs one. The others are words of a shell; `model`
// is where the folder lies there.
std::string TrainCommand(const LaunchRequest& request, std::string_view plan,
                         std::string_view model, std::string_view data, std::string_view save) {
  // Without a rate nothing says how often: twice an hour, as the steps are predicted.
  const auto every = std::max<int64_t>(1, std::llround(1800 / request.step_seconds));
  std::string options;
  for (const std::string& words : {request.length, request.data_options}) {
    if (!words.empty()) options += ' ' + words;
  }
  return fmt::format("zeroplan train --plan {}{} --data {}{} --save {} --save-every {} --resume",
                     plan, request.model_folder.empty() ? "" : fmt::format(" --model {}", model),
                     data, options, save, request.interrupted ? "auto" : std::to_string(every));
}

// The same on several nodes, each of which has a number; the ranks meet on the first one.
std::string TorchrunCommand(const LaunchRequest& request, std::string_view node,
                            std::string_view first, const std::string& train) {
  return fmt::format(
      "torchrun --nnodes {} --nproc-per-node {} --node-rank {} \\\n"
      "  --master-addr {} --master-port 29500 --no-python \\\n  {}",
      request.cluster.nodes(), request.cluster.ranks_per_node(), node, first, train);
}

// One node: checkpoints lie on its disk and are copied to a bucket.
std::string RunBesideBucket(const LaunchRequest& request) {
  return fmt::format(R"(set -u
# zeroplan saves to the node's disk, as mounts of buckets rename a folder by copying it. What is
# complete is copied to the bucket, and a new machine goes on from the newest of these.
mkdir -p "$SAVE/checkpoints" "$BUCKET"
complete() {{ ls "$BUCKET" | sed -n 's/\.complete$//p' | sort; }}
newest=$(complete | tail -n 1)
if [ -n "$newest" ] && [ ! -e "$SAVE/checkpoints/$newest" ]; then
  rm -rf "$SAVE/restored"
  cp -r "$BUCKET/$newest" "$SAVE/restored" || exit 1
  mv "$SAVE/restored" "$SAVE/checkpoints/$newest"
  echo "$newest" > "$SAVE/checkpoints/latest"
fi
# Hard links hold what is copied, while zeroplan removes older checkpoints.
copy() {{
  local name
  name=$(cat "$SAVE/checkpoints/latest" 2> /dev/null) || return 0
  [ ! -e "$BUCKET/$name.complete" ] || return 0
  rm -rf "${{BUCKET:?}}/$name" "$SAVE/uploading"
  cp -rl "$SAVE/checkpoints/$name" "$SAVE/uploading" || return 0
  cp -r "$SAVE/uploading" "$BUCKET/$name" && touch "$BUCKET/$name.complete" || return 0
  rm -rf "$SAVE/uploading"
  for old in $(complete | head -n -2); do rm -rf "$BUCKET/$old.complete" "$BUCKET/$old"; done
}}
{} &
train=$!
# bash hears a signal while it waits, not while something runs in front of it.
trap 'kill -TERM "$train"' TERM INT
while kill -0 "$train" 2> /dev/null; do
  {{ copy; sleep 5; }} &
  copying=$!
  while kill -0 "$copying" 2> /dev/null; do wait "$copying"; done
done
code=0
wait "$train" || code=$?
copy
[ "$code" -ne 0 ] || cp "$SAVE"/*.safetensors "$SAVE"/*.json "$BUCKET/" || code=1
exit "$code"
)",
                     TrainCommand(request, "\"$PLAN\"", "\"$MODEL\"", "\"$DATA\"", "\"$SAVE\""));
}

std::string SkyPilotTask(const LaunchRequest& request) {
  const ClusterShape& cluster = request.cluster;
  const bool several = cluster.nodes() > 1;
  constexpr double kSystemGb = 100, kLeastGb = 256;  // SkyPilot's own default
  const double disk =
      std::max(kLeastGb, std::ceil(static_cast<double>(request.disk_bytes) / 1e9 + kSystemGb));
  std::string text = Head(request, "SkyPilot");
  text += fmt::format("#\n#   sky {}launch {}\n#\n", request.interrupted ? "jobs " : "",
                      ShellWord(request.file));
  const bool folder = !request.model_folder.empty();
  text += fmt::format(
      "# To change: {}, and zeroplan.deb:\n"
      "# zeroplan's package (docs/install.md), built on the distribution that the machines have.\n",
      !several ? "the name of the bucket, which has to be your own, the data"
      : folder ? "the volume, which all nodes share and which has the data and the model's folder"
               : "the volume, which all nodes share and which has the data");
  text += fmt::format("name: zeroplan\nnum_nodes: {}\nresources:\n", cluster.nodes());
  text += fmt::format("  accelerators: {}:{}\n", SkyPilotName(request.gpu_name),
                      cluster.ranks_per_node());
  if (request.interrupted) {
    text +=
        "  use_spot: true\n"
        "  # A run that was stopped has saved, and leaves with 130.\n"
        "  job_recovery:\n    recover_on_exit_codes: [130]\n";
  }
  text += fmt::format("  disk_size: {:.0f}\n", disk);
  text += fmt::format("envs:\n  PLAN: ~/plan.json\n  DATA: {0}/data\n  SAVE: {0}/out\n",
                      several ? "/shared" : "~");
  if (folder) text += fmt::format("  MODEL: {}/model\n", several ? "/shared" : "~");
  if (!several) text += "  BUCKET: /bucket/zeroplan\n";
  text += fmt::format("file_mounts:\n  ~/zeroplan.deb: ./zeroplan.deb\n  ~/plan.json: {}\n",
                      Quoted(request.plan_file));
  if (folder && !several) text += fmt::format("  ~/model: {}\n", Quoted(request.model_folder));
  text += several ? "volumes:\n  /shared: zeroplan\n"
                  : "  ~/data: ./data\n  /bucket:\n    name: my-zeroplan-checkpoints\n"
                    "    mode: MOUNT\n";
  text +=
      fmt::format("setup: |\n  sudo apt-get update && sudo apt-get install -y ~/zeroplan.deb\n{}",
                  several ? "  pip install torch  # for torchrun\n" : "");
  std::string run = RunBesideBucket(request);
  if (several) {
    run = "exec " +
          TorchrunCommand(
              request, "\"$SKYPILOT_NODE_RANK\"", "\"$(echo \"$SKYPILOT_NODE_IPS\" | head -n 1)\"",
              TrainCommand(request, "\"$PLAN\"", "\"$MODEL\"", "\"$DATA\"", "\"$SAVE\"")) +
          '\n';
  }
  // envs are not expanded by SkyPilot.
  const std::string paths = fmt::format(
      "PLAN=${{PLAN/#\\~/$HOME}} DATA=${{DATA/#\\~/$HOME}} SAVE=${{SAVE/#\\~/$HOME}}{}\n",
      folder ? " MODEL=${MODEL/#\\~/$HOME}" : "");
  return text + "run: |\n" + IndentedBy(2, paths + run);
}

std::string KubernetesJob(const LaunchRequest& request) {
  const ClusterShape& cluster = request.cluster;
  const int nodes = cluster.nodes();
  const bool several = nodes > 1;
  std::string text = Head(request, "Kubernetes");
  text += fmt::format(
      "#\n#   kubectl create configmap zeroplan-plan --from-file=plan.json={}\n"
      "#   kubectl apply -f {}\n#\n",
      ShellWord(request.plan_file), ShellWord(request.file));
  text += fmt::format(
      "# To change: the image, which has zeroplan{}, and the claim `shared`,\n"
      "# storage{} with the data{} in it, on which checkpoints stay.\n",
      several ? " and torchrun" : "", several ? " of all nodes (ReadWriteMany)" : "",
      request.model_folder.empty() ? "" : " and the model's folder");
  if (several) {
    text +=
        "# The pods find the first one by its name, zeroplan-0.zeroplan.\n"
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: zeroplan\nspec:\n  clusterIP: None\n"
        "  publishNotReadyAddresses: true\n  selector:\n    job-name: zeroplan\n---\n";
  }
  text += fmt::format(
      "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: zeroplan\nspec:\n  completions: {0}\n"
      "  parallelism: {0}\n  completionMode: Indexed\n  backoffLimit: {1}\n",
      nodes, several && request.interrupted ? 1000 : 3 * nodes);
  // Exit codes: docs/commands.md.
  text += several ? "  # What takes a node away does not count as a failure of its pod, but those "
                    "of the others\n"
                    "  # end with it; the run goes on from its newest checkpoint.\n"
                  : "  # What takes a node away does not count as a failure; the run goes on from "
                    "its newest\n"
                    "  # checkpoint.\n";
  text +=
      "  podFailurePolicy:\n    rules:\n"
      "      - action: Ignore\n        onPodConditions:\n          - type: DisruptionTarget\n";
  if (!several) {
    text +=
        "      # Stopped, after saving.\n"
        "      - action: Ignore\n        onExitCodes:\n          operator: In\n"
        "          values: [130]\n"
        "      # Bad input, nothing fits, diverged: another start comes to the same.\n"
        "      - action: FailJob\n        onExitCodes:\n          operator: In\n"
        "          values: [2, 3, 5]\n";
  }
  const double grace = std::max(120.0, std::ceil(2 * request.save_seconds));
  text += fmt::format(
      "  template:\n    spec:\n      restartPolicy: Never\n"
      "      # For the step that runs and its save{}.\n"
      "      terminationGracePeriodSeconds: {:.0f}\n",
      several ? "; torchrun ends its processes after 30 s" : "", grace);
  if (several) text += "      subdomain: zeroplan\n";
  text += fmt::format(
      "      # Planned for {}. Where nodes are labelled (NVIDIA's GPU feature\n"
      "      # discovery), nvidia.com/gpu.product in a nodeSelector asks for it.\n",
      PrintableText(request.gpu_name, 80));
  if (request.interrupted) {
    text +=
        "      # Nodes that may be taken away have a label of their cloud, for a nodeSelector "
        "too:\n"
        "      # cloud.google.com/gke-spot, eks.amazonaws.com/capacityType, or\n"
        "      # kubernetes.azure.com/scalesetpriority.\n";
  }
  const std::string train = TrainCommand(request, "/plan/plan.json", "model", "data", "out");
  const std::string command =
      several ? TorchrunCommand(request, "\"$JOB_COMPLETION_INDEX\"", "zeroplan-0.zeroplan", train)
              : train;
  text += fmt::format(
      "      containers:\n        - name: zeroplan\n"
      "          image: registry.example/zeroplan{}:{}\n          workingDir: /shared\n"
      "          # exec: {} hears the stop itself.\n"
      "          command: [\"/bin/bash\", \"-c\"]\n          args:\n            - |\n{}",
      several ? "-torch" : "", kVersion, several ? "torchrun" : "zeroplan",
      IndentedBy(14, "exec " + command + '\n'));
  text += fmt::format(
      "          resources:\n            limits:\n              nvidia.com/gpu: \"{}\"\n"
      "          securityContext:\n            capabilities:\n              add: [\"IPC_LOCK\"]\n",
      cluster.ranks_per_node());
  return text +
         "          volumeMounts:\n            - name: shared\n              mountPath: /shared\n"
         "            - name: plan\n              mountPath: /plan\n"
         "            - name: shm\n              mountPath: /dev/shm\n"
         "      volumes:\n        - name: shared\n          persistentVolumeClaim:\n"
         "            claimName: shared\n"
         "        - name: plan\n          configMap:\n            name: zeroplan-plan\n"
         "        # A container's own /dev/shm has 64 MB, too little for NCCL.\n"
         "        - name: shm\n          emptyDir:\n            medium: Memory\n"
         "            sizeLimit: 8Gi\n";
}

}  // namespace

bool IsLaunchFormat(ConfigFormat format) {
  return format == ConfigFormat::kSkyPilot || format == ConfigFormat::kKubernetes;
}

std::string_view SkyPilotName(std::string_view gpu_name) {
  const auto* found = std::find_if(std::begin(kSkyGpus), std::end(kSkyGpus),
                                   [&](const SkyGpu& known) { return known.gpu == gpu_name; });
  return found == std::end(kSkyGpus) ? std::string_view() : found->name;
}

std::string BashWord(std::string_view text) {
  std::string quoted = "$'";
  bool unprintable = false;
  for (size_t at = 0; at < text.size();) {
    size_t whole = 1;
    const size_t bytes = UnprintableBytes(text, at, &whole);
    unprintable = unprintable || bytes > 0;
    for (const char c : text.substr(at, bytes)) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    if (bytes == 0) {
      if (text[at] == '\'' || text[at] == '\\') quoted += '\\';
      quoted += text.substr(at, whole);
    }
    at += bytes > 0 ? bytes : whole;
  }
  return unprintable ? quoted + '\'' : ShellWord(text);
}

void CheckLaunch(ConfigFormat format, const ClusterShape& cluster, std::string_view gpu_name) {
  ProcessesPerNode(cluster);
  if (format != ConfigFormat::kSkyPilot || !SkyPilotName(gpu_name).empty()) return;
  ThrowUsage(
      "⟦for⟧: SkyPilot's catalogue has no name for {}; plan for GPUs that it has, such as ⟦hw⟧ "
      "dgx-h100, or use ⟦for⟧ kubernetes",
      gpu_name);
}

WrittenConfig WriteLaunchFile(const LaunchRequest& request) {
  CheckLaunch(request.format, request.cluster, request.gpu_name);
  WrittenConfig out;
  const std::string file = ShellWord(request.file);
  if (request.format == ConfigFormat::kSkyPilot) {
    out.files.push_back({request.file, SkyPilotTask(request)});
    out.launch = fmt::format("sky {}launch {}", request.interrupted ? "jobs " : "", file);
    out.notes.emplace_back(
        request.cluster.nodes() > 1
            ? "Before: the volume and the package zeroplan.deb, as its first lines say."
            : "Before: the bucket's name, data and zeroplan.deb, as its first lines say.");
    if (request.interrupted && request.cluster.nodes() == 1) {
      out.notes.emplace_back(
          "A new machine goes on from what had reached the bucket: what copying a checkpoint there "
          "takes comes on top of the save's time, in what a notice needs and in what is made "
          "again.");
    }
    if (request.interrupted && request.cluster.nodes() > 1) {
      out.notes.emplace_back(
          "torchrun ends its processes 30 s after a stop: a step and its save that take longer are "
          "made again.");
    }
  } else {
    out.files.push_back({request.file, KubernetesJob(request)});
    out.launch = fmt::format(
        "kubectl create configmap zeroplan-plan --from-file=plan.json={}\nkubectl apply -f {}",
        ShellWord(request.plan_file), file);
    out.notes.push_back(
        fmt::format("Before: an image with zeroplan, and the claim `shared` with {}.",
                    request.model_folder.empty() ? "the data"
                                                 : "the data as `data` and the model's folder as "
                                                   "`model`"));
  }
  if (request.length.empty()) {
    out.notes.emplace_back(
        "Nothing says how long the run is, so it ends after train's 100 steps: ⟦tokens⟧, or ⟦data⟧ "
        "and ⟦epochs⟧, say it.");
  }
  return out;
}

}  // namespace zeroplan
