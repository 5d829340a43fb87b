#include "text/files/mapped_ranges.h"

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/strings.h"

namespace zeroplan {

// Nodes are never freed, so that a handler may walk the list at any moment; one that is no longer
// used has no bytes, and is used again.
struct MappedRange::Node {
  std::atomic<uintptr_t> begin = 0;
  std::atomic<size_t> bytes = 0;
  std::atomic<const char*> path = nullptr;
  Node* next = nullptr;
};

struct MappedRanges {
  using Node = MappedRange::Node;

  static Node* Add(const std::byte* data, size_t bytes, const std::filesystem::path& path) {
    const std::lock_guard lock(mutex);
    const bool is_new = free.empty();
    Node* node = is_new ? new Node : free.back();
    if (!is_new) free.pop_back();
    std::free(const_cast<char*>(node->path.exchange(::strdup(Escaped(path.string()).c_str()))));
    node->begin = reinterpret_cast<uintptr_t>(data);
    node->bytes = bytes;
    if (is_new) {
      node->next = first;
      first = node;
    }
    return node;
  }
  static void Remove(Node* node) {
    const std::lock_guard lock(mutex);
    node->bytes = 0;
    free.push_back(node);
  }
  // The file at that address; nullptr if there is none.
  static const char* PathAt(uintptr_t address) {
    for (const Node* node = first; node != nullptr; node = node->next) {
      if (address - node->begin < node->bytes) return node->path;
    }
    return nullptr;
  }

  static inline std::atomic<Node*> first = nullptr;
  static inline std::mutex mutex;
  static inline std::vector<Node*> free;  // under mutex
};

namespace {

// Calls nothing but what a signal handler may call.
void OnBusError(int signal, siginfo_t* info, void*) {
  const char* path = MappedRanges::PathAt(reinterpret_cast<uintptr_t>(info->si_addr));
  if (path == nullptr) {
    ::signal(signal, SIG_DFL);  // which the faulting instruction, run again, meets
    return;
  }
  constexpr char kBegin[] = "zeroplan: ";
  constexpr char kEnd[] =
      ": was cut short while it is read, or its disk cannot read it any more; nothing is saved of "
      "what came after the last checkpoint\n";
  const iovec parts[] = {{const_cast<char*>(kBegin), sizeof kBegin - 1},
                         {const_cast<char*>(path), std::strlen(path)},
                         {const_cast<char*>(kEnd), sizeof kEnd - 1}};
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, parts, 3);
  ::_exit(static_cast<int>(ExitCode::kRuntime));
}

void InstallOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    if (::sigaction(SIGBUS, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
    action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, nullptr);
  });
}

}  // namespace

MappedRange::MappedRange(const std::byte* data, size_t bytes, const std::filesystem::path& path)
    : node_(MappedRanges::Add(data, bytes, path)) {
  InstallOnce();
}

MappedRange::~MappedRange() {
  if (node_ != nullptr) MappedRanges::Remove(node_);
}

MappedRange::MappedRange(MappedRange&& other) noexcept
    : node_(std::exchange(other.node_, nullptr)) {}

MappedRange& MappedRange::operator=(MappedRange&& other) noexcept {
  std::swap(node_, other.node_);
  return *this;
}

}  // namespace zeroplan
