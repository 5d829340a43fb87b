// The thread behind a TcpGroup: it alone touches the connections; callers leave orders and wait.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor/process/connection.h"
#include "executor/process/tcp_group.h"

namespace zeroplan {

enum class CollectiveCall : uint8_t { kBarrier, kBroadcast, kAllGather };

// Lists of texts as one text.
std::string PackTexts(const std::vector<std::string>& texts);
std::vector<std::string> UnpackTexts(std::string_view packed);

class StarService {
 public:
  // `peers` by rank: open are, on rank 0, all others, else rank 0 alone.
  StarService(const ProcessPlace& place, const TcpGroupOptions& options,
              std::vector<Connection> peers);
  ~StarService();  // see ~TcpGroup
  StarService(const StarService&) = delete;
  StarService& operator=(const StarService&) = delete;

  const ProcessPlace& place() const { return place_; }
  // This rank's part goes to rank 0; what comes back is all parts packed (kAllGather), rank 0's
  // (kBroadcast) or nothing (kBarrier). Throws once the run has failed.
  std::string Collective(CollectiveCall call, std::string part);
  void Fail(ExitCode code, const std::string& message) noexcept;

  bool failed() const noexcept { return failed_.load(); }
  std::string failure() const;
  ExitCode failure_code() const noexcept;

 private:
  struct Part {
    uint64_t number = 0;  // of the collective, from 0
    CollectiveCall call = CollectiveCall::kBarrier;
    std::string bytes;
  };
  struct Failure {
    ExitCode code = ExitCode::kRuntime;
    std::string message;
  };

  bool is_hub() const { return place_.rank == 0; }
  void Wake() noexcept;
  bool RunHasFailed() const { return failed_.load(); }

  // All below: on the thread only.
  void Serve();
  void Poll();
  void TakeOrders(SteadyTime now);
  void Handle(int rank, Frame frame);
  void HandleFailed(int rank, const std::string& payload);
  void CheckPeers(SteadyTime now);
  void TakePart(int rank, Part part);
  void CompleteIfAllCame();
  void Deliver(std::string result);
  void RunFailed(ExitCode code, const std::string& message);
  bool MayEnd(SteadyTime now) const;
  void EndIfStuck(SteadyTime now) const;

  const ProcessPlace place_;
  const TcpGroupOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Part> order_part_;        // from Collective()
  std::optional<Failure> order_failure_;  // from Fail()
  std::optional<std::string> result_;     // to Collective()
  bool leaving_ = false;
  Failure failure_;  // set before failed_
  std::atomic<bool> failed_ = false;
  uint64_t next_number_ = 0;  // of this rank's next collective

  // The thread's own.
  std::vector<Connection> peers_;
  std::vector<bool> left_;                  // said goodbye
  std::vector<std::optional<Part>> parts_;  // rank 0: of the collective under way
  std::optional<Failure> own_failure_;      // told to rank 0, which has not answered
  SteadyTime own_failure_limit_, failed_at_, last_turn_, last_alive_, leave_limit_;
  bool said_goodbye_ = false;
  UniqueFd wake_;
  std::thread thread_;  // last
};

}  // namespace zeroplan
