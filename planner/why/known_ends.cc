#include "planner/why/known_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "planner/why/log_text.h"

namespace zeroplan {
namespace {

constexpr std::string_view kSharedMemory =
    "Give a container more of it (docker --shm-size=16g or --ipc=host; Kubernetes: an emptyDir of "
    "medium Memory at /dev/shm), free what 'df -h /dev/shm' shows, or use fewer DataLoader "
    "workers.";
constexpr std::string_view kOwnOutput =
    "Its reason is in that process's own output, above this line or in its own file (torchrun "
    "--log-dir).";
constexpr std::string_view kNativeCode =
    "Mostly a library was built for other versions: install flash-attn, DeepSpeed, bitsandbytes "
    "and "
    "NCCL again for this PyTorch, and remove ~/.cache/torch_extensions. PYTHONFAULTHANDLER=1 "
    "prints "
    "the frames.";
constexpr std::string_view kSaveOften =
    "Ask for more time, or save often enough to resume from the last checkpoint.";
constexpr std::string_view kOtherGpu =
    "Take that GPU out of use: 'nvidia-smi -q -d ECC' and the kernel's log (Xid) name it. It needs "
    "a reset, or replacement. Resume from the last checkpoint.";
constexpr std::string_view kFewerWorkers =
    "Each worker holds a copy of the data set's Python objects and its prefetched batches: lower "
    "dataloader_num_workers or dataloader_prefetch_factor, or give the job more memory.";

struct SignalEnd {
  int number;
  std::string_view name, in_shell;  // the shell's word for it; empty: none is read
  FailureKind kind;
  std::string_view what, way_out;
};
constexpr auto kSignals = std::to_array<SignalEnd>({
    {1, "SIGHUP", "Hangup", FailureKind::kInterrupted, "its terminal or session closed (SIGHUP)",
     "Start it with nohup, in tmux or screen, or as a batch job."},
    {2, "SIGINT", "", FailureKind::kInterrupted, "someone interrupted it (SIGINT)", ""},
    {4, "SIGILL", "Illegal instruction", FailureKind::kCrashed,
     "an instruction that this CPU lacks (SIGILL)",
     "Native code was built on another machine: remove ~/.cache/torch_extensions, or set "
     "TORCH_EXTENSIONS_DIR to a folder of this machine, so that DeepSpeed builds it again."},
    {6, "SIGABRT", "Aborted", FailureKind::kAborted, "native code ended the process (SIGABRT)",
     "The lines before it tell why: a C++ exception, NCCL's watchdog after another rank failed, or "
     "damaged memory."},
    {7, "SIGBUS", "Bus error", FailureKind::kCrashed,
     "a bus error (SIGBUS): mapped memory could not be had, mostly because /dev/shm is full, which "
     "NCCL and DataLoader workers share",
     kSharedMemory},
    {8, "SIGFPE", "Floating point exception", FailureKind::kCrashed,
     "an arithmetic error in native code (SIGFPE)", kNativeCode},
    {9, "SIGKILL", "Killed", FailureKind::kKilled, "", ""},
    {11, "SIGSEGV", "Segmentation fault", FailureKind::kCrashed,
     "a segmentation fault in native code (SIGSEGV)", kNativeCode},
    {13, "SIGPIPE", "", FailureKind::kCrashed, "the reader of its output ended (SIGPIPE)", ""},
    {15, "SIGTERM", "Terminated", FailureKind::kInterrupted,
     "another process ended it (SIGTERM): a launcher after another rank failed, a scheduler, or "
     "someone",
     "The output of the other ranks and of the scheduler tells which."},
    {24, "SIGXCPU", "CPU time limit exceeded", FailureKind::kInterrupted,
     "its limit of CPU time ended (SIGXCPU)", kSaveOften},
});

// Lines with all of `marks`. The first row that matches decides.
struct MessageEnd {
  std::array<std::string_view, 2> marks;
  FailureKind kind;
  std::string_view what, way_out;
};
constexpr auto kMessages = std::to_array<MessageEnd>({
    {{"DataLoader worker", "killed by signal: Killed"},
     FailureKind::kKilled,
     "A DataLoader worker was killed (SIGKILL)",
     kFewerWorkers},
    {{"DataLoader worker", "killed by signal: Bus error"},
     FailureKind::kCrashed,
     "a DataLoader worker had no shared memory left (SIGBUS): /dev/shm is full",
     kSharedMemory},
    {{"DataLoader worker", "killed by signal: "},
     FailureKind::kCrashed,
     "a DataLoader worker crashed in native code",
     kNativeCode},
    {{"DataLoader worker", "exited unexpectedly"},
     FailureKind::kCrashed,
     "a DataLoader worker ended without a word",
     "dataloader_num_workers=0 shows its traceback; where it was killed, memory of the host or "
     "/dev/shm was short."},
    {{"out of shared memory", ""}, FailureKind::kCrashed, "/dev/shm is full", kSharedMemory},
    {{"unable to open shared memory object", ""},
     FailureKind::kCrashed,
     "a tensor in shared memory could not be opened: too many files are open, or /dev/shm is full",
     "torch.multiprocessing.set_sharing_strategy('file_system') and 'ulimit -n 65536' help against "
     "the first."},
    {{"shared memory segment", "/dev/shm"},
     FailureKind::kCrashed,
     "NCCL could not make its buffers in /dev/shm",
     kSharedMemory},
    {{"DUE TO TIME LIMIT", ""},
     FailureKind::kScheduler,
     "Slurm ended it at its time limit",
     kSaveOften},
    {{"DUE TO PREEMPTION", ""},
     FailureKind::kScheduler,
     "Slurm preempted it",
     "Save often enough to resume, and let the job start again (--requeue)."},
    {{"DUE TO NODE FAILURE", ""},
     FailureKind::kHardware,
     "a node failed, as Slurm tells",
     "Leave that node out (--exclude) and resume from the last checkpoint."},
    {{"uncorrectable ECC error", ""},
     FailureKind::kHardware,
     "a GPU's memory has an error that its ECC cannot correct",
     kOtherGpu},
    {{"Uncorrectable ECC", ""},
     FailureKind::kHardware,
     "a GPU's memory has an error that its ECC cannot correct",
     kOtherGpu},
    {{"uncorrectable NVLink error", ""},
     FailureKind::kHardware,
     "a link between GPUs has an error that cannot be corrected",
     kOtherGpu},
    {{"GPU has fallen off the bus", ""},
     FailureKind::kHardware,
     "a GPU no longer answers on its bus",
     kOtherGpu},
    {{"GPU is lost", ""}, FailureKind::kHardware, "a GPU no longer answers on its bus", kOtherGpu},
    {{"OOMKilled", ""}, FailureKind::kKilled, "", ""},
    {{"oom_kill event", ""}, FailureKind::kKilled, "", ""},
    {{"oom-kill event", ""}, FailureKind::kKilled, "", ""},
    {{"Out of memory: Killed process", ""}, FailureKind::kKilled, "", ""},
    {{"killed by signal: Killed", ""}, FailureKind::kKilled, "", ""},
});

// Messages of exceptions with all of `marks`.
struct ErrorWayOut {
  std::array<std::string_view, 2> marks;
  std::string_view way_out;
};
constexpr std::string_view kOneDtype =
    "FSDP1 flattens the parameters of a layer into one tensor, so all have one dtype: load the "
    "model "
    "in the dtype of training (torch_dtype bfloat16), and of a 4-bit base set "
    "bnb_4bit_quant_storage to it.";
constexpr auto kErrors = std::to_array<ErrorWayOut>({
    {{"More elements", "than buffer size"},
     "DeepSpeed reads parameters from NVMe into buffers of zero_optimization.offload_param."
     "buffer_size elements (default 1e8): set it to at least the first number of that message, "
     "which "
     "is a rank's part of the model's largest parameter, mostly the embedding."},
    {{"Not enough swap in buffers", ""},
     "Raise zero_optimization.offload_param.buffer_count (default 5), or lower "
     "stage3_prefetch_bucket_size, so that fewer parameters are on their way from NVMe."},
    {{"No buffer available to swap param", ""},
     "Raise zero_optimization.offload_param.buffer_count (default 5)."},
    {{"Must flatten tensors with uniform dtype", ""}, kOneDtype},
    {{"Cannot flatten integer dtype", ""}, kOneDtype},
    {{"size mismatch for", "torch.Size([0])"},
     "ZeRO-3 has parted the weights, so they are empty here: load them through from_pretrained "
     "with "
     "HfDeepSpeedConfig alive, or within deepspeed.zero.GatheredParameters."},
    {{"Current loss scale already at minimum", ""},
     "The gradients overflow fp16 at every loss scale: train in bf16, or with a lower learning "
     "rate "
     "and clipped gradients; look for NaN in the data."},
    {{"device-side assert triggered", ""},
     "Mostly an index is out of range, such as a token id beyond the vocabulary, or a label: "
     "CUDA_LAUNCH_BLOCKING=1 shows the operation."},
    {{"No space left on device", ""},
     "A disk or its quota is full: checkpoints with optimizer states hold about 14 bytes a "
     "parameter; save_total_limit and save_only_model keep fewer of them."},
    {{"Address already in use", ""},
     "Another run holds the port: give another --master_port (torchrun, DeepSpeed) or "
     "--main_process_port (accelerate)."},
    {{"No CUDA GPUs are available", ""},
     "CUDA_VISIBLE_DEVICES, the container or the job gives it no GPU; 'nvidia-smi -L' there lists "
     "them."},
});

const SignalEnd* SignalNumber(int number) {
  const auto* found = std::find_if(kSignals.begin(), kSignals.end(),
                                   [&](const SignalEnd& of) { return of.number == number; });
  return found == kSignals.end() ? nullptr : found;
}

KnownEnd EndBySignal(int number) {
  const SignalEnd* known = SignalNumber(number);
  if (known == nullptr) {
    return {FailureKind::kCrashed, fmt::format("signal {}", number), std::string(kOwnOutput)};
  }
  return {known->kind, std::string(known->what), std::string(known->way_out)};
}

// The number after `key`, with its sign.
std::optional<int> SignedAfter(std::string_view line, std::string_view key) {
  size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  at += key.size();
  while (at < line.size() && (line[at] == ' ' || line[at] == ':' || line[at] == '=')) ++at;
  int value = 0;
  const auto [end, error] = std::from_chars(line.data() + at, line.data() + line.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// A shell's notice: "Bus error (core dumped)", "run.sh: line 3: 42 Killed   python train.py",
// "srun: error: node1: task 3: Segmentation fault".
const SignalEnd* ShellNotice(std::string_view line) {
  const std::string_view text = Trimmed(line);
  for (const SignalEnd& signal : kSignals) {
    if (signal.in_shell.empty()) continue;
    const size_t at = text.find(signal.in_shell);
    if (at == text.npos) continue;
    const std::string_view before = text.substr(0, at);
    const std::string_view behind = text.substr(at + signal.in_shell.size());
    const bool job = before.empty() || before.ends_with(": ") ||
                     (before.ends_with(' ') &&
                      std::isdigit(static_cast<unsigned char>(Trimmed(before).back())) != 0);
    const bool alone = behind.empty() || behind == "." || behind.starts_with(" (core dumped)");
    const bool command = behind.starts_with("  ") && !before.empty();
    const bool of_task = before.find("srun: error: ") != before.npos;
    if (job && (command ||
                (alone && (before.empty() || of_task || behind.starts_with(" (core dumped)"))))) {
      return &signal;
    }
  }
  return nullptr;
}

// The end with an exit code: of Python's subprocess module (-9), or of a shell (137).
std::optional<KnownEnd> EndWithCode(int code) {
  constexpr int kShell = 128, kSignalMost = 31;  // a shell adds 128 to the signal
  if (code == 0) return std::nullopt;
  if (code < 0 && code >= -64) return EndBySignal(-code);
  if (code > kShell && code <= kShell + kSignalMost) return EndBySignal(code - kShell);
  if (code == 2) {
    return KnownEnd{FailureKind::kExited,
                    "exit code 2, as of a program that does not take its arguments",
                    std::string(kOwnOutput)};
  }
  return KnownEnd{FailureKind::kExited, fmt::format("exit code {}", code), std::string(kOwnOutput)};
}

}  // namespace

std::string_view FailureKindName(FailureKind kind) {
  constexpr std::array<std::string_view, 11> kNames = {
      "gpu_memory", "host_memory", "killed",   "timeout",   "interrupted", "error",
      "crashed",    "aborted",     "hardware", "scheduler", "exited"};
  return kNames[static_cast<size_t>(kind)];
}

size_t ExceptionName(std::string_view text) {
  size_t end = 0;
  while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) ||
                               text[end] == '.' || text[end] == '_')) {
    ++end;
  }
  const std::string_view name = text.substr(0, end);
  const bool is = name.ends_with("Error") || name.ends_with("Exception") ||
                  name.ends_with("KeyboardInterrupt") || name.ends_with("Interrupt");
  return is && (end == text.size() || text[end] == ':') ? end : 0;
}

bool IsConsequence(std::string_view message) {
  for (const std::string_view mark :
       {"ChildFailedError", "CalledProcessError", "SignalException", "ProcessExitedException",
        "DistBackendError", "Connection reset by peer", "Broken pipe", "Connection closed by",
        "TCPStore", "EOFError", "ProcessRaisedException", "ncclRemoteError"}) {
    if (HasPart(message, mark)) return true;
  }
  return false;
}

OomMessage ShortageIn(std::string_view text) {
  OomMessage of;
  of.wanted = SizeAfter(text, "Tried to allocate ");
  if (const auto gpu = CountAfter(text, "GPU ")) of.gpu = static_cast<int>(*gpu);
  // PyTorch 2.1 on. Its first versions misspelt "capacity".
  of.total = SizeAfter(text, "total capacity of ");
  if (!of.total) of.total = SizeAfter(text, "total capacty of ");
  if (of.total) {
    of.free = SizeBefore(text, " is free");
    of.allocated = SizeBefore(text, " is allocated by PyTorch");
    const auto unallocated = SizeBefore(text, " is reserved by PyTorch but unallocated");
    const uint64_t pools = SizeBefore(text, " allocated in private pools").value_or(0);
    if (of.allocated && unallocated) of.reserved = *of.allocated + *unallocated + pools;
    of.in_use = SizeAfter(text, "this process has ");
    // Without that name the processes that the driver shows are listed: one alone is this one.
    if (!of.in_use && text.find(" memory in use") == text.rfind(" memory in use")) {
      of.in_use = SizeBefore(text, " memory in use");
    }
    of.allowed = SizeBefore(text, " allowed; Of");
    return of;
  }
  of.total = SizeBefore(text, " total capacity");
  of.allocated = SizeBefore(text, " already allocated");
  of.free = SizeBefore(text, " free;");
  of.reserved = SizeBefore(text, " reserved in total");
  if (!of.reserved) of.reserved = SizeBefore(text, " cached)");
  of.allowed = SizeBefore(text, " allowed;");
  return of;
}

RunPhase PhaseOfLabel(std::string_view label) {
  struct LabelPhase {
    std::string_view part;
    RunPhase phase;
  };
  constexpr auto kLabels =
      std::to_array<LabelPhase>({{"step ", RunPhase::kUnknown},
                                 {"Loading checkpoint shards", RunPhase::kLoading},
                                 {"Loading weights", RunPhase::kLoading},
                                 {"loading the model", RunPhase::kLoading},
                                 {"saving ", RunPhase::kSaving},
                                 {"evaluation", RunPhase::kEvaluation},
                                 {"nitializ", RunPhase::kInit},
                                 {"fp16 partitions", RunPhase::kInit},
                                 {"fp32 partitions", RunPhase::kInit}});
  for (const LabelPhase& known : kLabels) {
    if (label.find(known.part) != label.npos) return known.phase;
  }
  return RunPhase::kUnknown;
}

std::string WayOutOfError(std::string_view message) {
  for (const ErrorWayOut& error : kErrors) {
    if (HasPart(message, error.marks[0]) && HasPart(message, error.marks[1])) {
      return std::string(error.way_out);
    }
  }
  return "";
}

std::optional<KnownEnd> EndIn(std::string_view line) {
  // A line of source that raises the message is none.
  if (HasPart(line, "raise ") || HasPart(line, "f\"")) return std::nullopt;
  for (const MessageEnd& message : kMessages) {
    if (!HasPart(line, message.marks[0]) || !HasPart(line, message.marks[1])) continue;
    return KnownEnd{message.kind, std::string(message.what), std::string(message.way_out)};
  }
  for (const std::string_view key :
       {"exitcode: ", "exitcode  : ", "return code = ", "exited with exit code ",
        "Exited with exit code ", "exited with code ", "exit status ",
        "Exit Code: ", "process exited with status ", "exit_code="}) {
    if (const std::optional<int> code = SignedAfter(line, key)) return EndWithCode(*code);
  }
  for (const std::string_view key : {"got signal: ", "received signal ", "died with <Signals."}) {
    const size_t at = line.find(key);
    if (at == line.npos) continue;
    if (const std::optional<int> number = SignedAfter(line, key)) return EndBySignal(*number);
    for (const SignalEnd& signal : kSignals) {
      if (line.substr(at + key.size()).starts_with(signal.name)) return EndBySignal(signal.number);
    }
  }
  if (const std::optional<int> number = SignedAfter(line, "Signal "); number && *number > 0) {
    // "Signal 11 (SIGSEGV) received by PID 438"
    if (HasPart(line, ") received by PID")) return EndBySignal(*number);
  }
  if (const SignalEnd* signal = ShellNotice(line)) return EndBySignal(signal->number);
  return std::nullopt;
}

}  // namespace zeroplan
